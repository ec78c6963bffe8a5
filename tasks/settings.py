"""Settings that belong to one choice by name: a record's stand-in for a mapping, which records do not hold."""

from __future__ import annotations

from collections.abc import Iterable

Named = tuple[tuple[str, float], ...]


def in_order(settings: Iterable[tuple[str, float]]) -> Named:
    """One form for what is set alike, whatever its order: the same settings are the same run."""
    return tuple(sorted((name, float(value)) for name, value in settings))
