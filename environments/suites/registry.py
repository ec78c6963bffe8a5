"""Suites by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from environments.suites.base import Suite
from environments.suites.service_repair.suite import ServiceRepair

SUITES: Mapping[str, Callable[[], Suite]] = {ServiceRepair.name: ServiceRepair}


def suite_named(name: str) -> Suite:
    """The suite of this name. Raises ValueError that lists the names there are."""
    if name not in SUITES:
        raise ValueError(f"no suite is named {name!r}; there are {', '.join(sorted(SUITES))}")
    return SUITES[name]()
