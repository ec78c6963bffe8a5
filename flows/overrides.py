"""Settings from files and flags laid over a config: strict about names and types, said in the user's words."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that does not exist, does not fit, or contradicts another."""


def with_setting(config: T, dotted: str, value: Any, *, source: str) -> T:
    """`config` with one setting replaced, every check of the config run again.

    `dotted` is 'section.field'. `source` ('--set', a file name) is named in errors. Raises ConfigError.
    """
    changed: T = _with(config, dotted.split("."), value, dotted, source)
    return changed


def _with(config: Any, path: list[str], value: Any, dotted: str, source: str) -> Any:
    names = [f.name for f in dataclasses.fields(config)]
    head, *rest = path
    if head not in names:
        close = difflib.get_close_matches(head, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names)}"
        raise ConfigError(f"{source}: no setting {dotted!r}: {head!r} is unknown{hint}")
    old = getattr(config, head)
    if dataclasses.is_dataclass(old):
        if not rest:
            raise ConfigError(
                f"{source}: {dotted!r} is a section; set one of its fields, such as {dotted}.{_first(old)}"
            )
        new = _with(old, rest, value, dotted, source)
    elif rest:
        raise ConfigError(f"{source}: {dotted!r}: {head!r} is a value and has no fields")
    else:
        new = _coerce(get_type_hints(type(config))[head], value, dotted, source)
    try:
        return dataclasses.replace(config, **{head: new})
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def _first(section: Any) -> str:
    return dataclasses.fields(section)[0].name


def _coerce(kind: Any, value: Any, dotted: str, source: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    # Records hold no mappings: a field for one holds its pairs.
    given = tuple(value.items()) if isinstance(value, Mapping) else value
    try:
        return TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise ConfigError(f"{source}: {dotted} is {value!r}: {said}") from error


def with_settings(config: T, settings: list[tuple[str, Any]], *, source: str) -> T:
    """`config` with several settings laid over it. Raises ConfigError, the first one that stands.

    Settings may only fit together (a small pool and a small batch), so one that is refused is tried again after the
    others.
    """
    waiting = settings
    while waiting:
        refused: list[tuple[str, Any]] = []
        first: ConfigError | None = None
        for dotted, value in waiting:
            try:
                config = with_setting(config, dotted, value, source=source)
            except ConfigError as error:
                refused.append((dotted, value))
                first = first or error
        if first is not None and len(refused) == len(waiting):
            raise first
        waiting = refused
    return config


def with_flags(config: T, flags: tuple[str, ...]) -> T:
    """`config` with each 'section.field=value' laid over it, a later one over an earlier. Raises ConfigError."""
    import yaml

    settings: dict[str, Any] = {}
    for flag in flags:
        dotted, sign, text = flag.partition("=")
        if not sign:
            raise ConfigError(f"--set {flag!r}: want section.field=value")
        settings[dotted.strip()] = yaml.safe_load(text)
    return with_settings(config, list(settings.items()), source="--set")


def with_file(config: T, path: Path) -> T:
    """`config` with the settings of a YAML file laid over it. Raises ConfigError, naming the file."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"--config {path}: there is no such file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: not readable as YAML: {error}") from error
    if data is None:
        return config
    if not isinstance(data, Mapping):
        raise ConfigError(f"--config {path}: want sections with fields, got {type(data).__name__}")
    return with_settings(config, _leaves(config, data, ""), source=str(path))


def _leaves(config: Any, data: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in data.items():
        section = getattr(config, str(name), None)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(section):
            leaves += _leaves(section, value, f"{prefix}{name}.")
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves
