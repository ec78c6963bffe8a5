"""Settings from files and flags laid over a config: strict about names and types, said in the user's words."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class ConfigError(ValueError):
    """A setting that does not exist, does not fit, or contradicts another."""


@dataclass(frozen=True)
class _Setting:
    dotted: str
    path: tuple[str, ...]  # what is left of `dotted` below the section at hand
    value: Any


def with_settings(config: T, settings: Mapping[str, Any], *, source: str) -> T:
    """`config` with all of `settings` ({'section.field': value}) laid over it, every check of the config run again.

    They are laid over together, for some only fit together (an engine's kind and its address, a small pool and a
    small batch). `source` ('--set', a file name) is named in errors. Raises ConfigError.
    """
    laid = [_Setting(dotted, tuple(dotted.split(".")), value) for dotted, value in settings.items()]
    changed: T = _laid_over(config, laid, source)
    return changed


def _laid_over(config: Any, settings: list[_Setting], source: str) -> Any:
    below: dict[str, list[_Setting]] = {}
    for setting in settings:
        head = _known(config, setting, source)
        below.setdefault(head, []).append(dataclasses.replace(setting, path=setting.path[1:]))
    changes = {head: _changed(config, head, inner, source) for head, inner in below.items()}
    try:
        return dataclasses.replace(config, **changes)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def _known(config: Any, setting: _Setting, source: str) -> str:
    names = [f.name for f in dataclasses.fields(config)]
    head = setting.path[0]
    if head not in names:
        close = difflib.get_close_matches(head, names, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(names)}"
        raise ConfigError(f"{source}: no setting {setting.dotted!r}: {head!r} is unknown{hint}")
    return head


def _changed(config: Any, head: str, settings: list[_Setting], source: str) -> Any:
    old = getattr(config, head)
    if dataclasses.is_dataclass(old):
        for setting in settings:
            if not setting.path:
                example = f"{setting.dotted}.{_first(old)}"
                raise ConfigError(
                    f"{source}: {setting.dotted!r} is a section; set one of its fields, such as {example}"
                )
        return _laid_over(old, settings, source)
    for setting in settings:
        if setting.path:
            raise ConfigError(f"{source}: {setting.dotted!r}: {head!r} is a value and has no fields")
    (setting,) = settings
    return _coerce(get_type_hints(type(config))[head], setting.value, setting.dotted, source)


def _first(section: Any) -> str:
    return dataclasses.fields(section)[0].name


def _coerce(kind: Any, value: Any, dotted: str, source: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    # Records hold no mappings: a field for one holds its pairs.
    given = tuple(value.items()) if isinstance(value, Mapping) else value
    try:
        fitting = TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        raise ConfigError(f"{source}: {dotted} is {value!r}: {said}") from error
    if _endless(fitting):
        raise ConfigError(f"{source}: {dotted} is {value!r}; want finite numbers: a run's settings are kept as JSON")
    return fitting


def _endless(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_endless(inner) for inner in value)
    return isinstance(value, float) and not math.isfinite(value)


def with_flags(config: T, flags: tuple[str, ...]) -> T:
    """`config` with each 'section.field=value' laid over it, a later one over an earlier. Raises ConfigError."""
    import yaml

    settings: dict[str, Any] = {}
    for flag in flags:
        dotted, sign, text = flag.partition("=")
        if not sign:
            raise ConfigError(f"--set {flag!r}: want section.field=value")
        try:
            settings[dotted.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            said = f"{text!r} is not readable as YAML; close its brackets and quotes, or quote it whole"
            raise ConfigError(f"--set {dotted.strip()}: {said}") from error
    return with_settings(config, settings, source="--set")


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


def _leaves(config: Any, data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in data.items():
        section = getattr(config, str(name), None)
        if isinstance(value, Mapping) and dataclasses.is_dataclass(section):
            leaves |= _leaves(section, value, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = value
    return leaves
