"""Options that commands share, and how they become a configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.place import default_home

if TYPE_CHECKING:
    from flows.config import RunConfig


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every command takes.

    Parameters
    ----------
    home: Path
        Where runs, artifacts and the tracking database are kept (LONGBREATH_HOME).
    json: bool
        Print one JSON object as the last line of standard output.
    """

    home: Path = field(default_factory=default_home)
    json: Annotated[bool, Parameter(name="--json", negative="")] = False

    def emit(self, result: Mapping[str, Any]) -> None:
        """The machine's answer, when it was asked for."""
        if self.json:
            print(json.dumps(result, ensure_ascii=False))


@Parameter(name="*")
@dataclass(frozen=True)
class Settings:
    """Which configuration.

    Parameters
    ----------
    preset: str
        The configuration to start from.
    config: Path
        A YAML file laid over the preset: sections with fields.
    set: tuple[str, ...]
        One setting laid over both: section.field=value. May be repeated.
    """

    preset: str = "tiny"
    config: Path | None = None
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = ()

    def build(self) -> RunConfig:
        """The configuration. Raises ConfigError."""
        from flows.overrides import with_file, with_flags
        from flows.presets import preset

        built = preset(self.preset)
        if self.config is not None:
            built = with_file(built, self.config)
        return with_flags(built, self.set)
