"""Strategies by name: the one place that knows them all."""

from __future__ import annotations

from typing import Any

from training.curriculum.base import CurriculumError, Strategy
from training.curriculum.posterior import Posterior
from training.curriculum.seventy_five import SeventyFive

STRATEGIES: dict[str, type[Any]] = {
    "posterior": Posterior,
    "seventy_five": SeventyFive,
}


def build(name: str, **settings: Any) -> Strategy:
    """A strategy from its name and settings (its dataclass fields). Raises CurriculumError on an unknown name."""
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise CurriculumError(f"no curriculum strategy {name!r}; choose one of {', '.join(sorted(STRATEGIES))}")
    built: Strategy = strategy(**settings)
    return built
