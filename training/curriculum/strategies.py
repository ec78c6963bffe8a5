"""Strategies by name: the one place that knows them all. (The oracle is not here: no run can know the truth.)"""

from __future__ import annotations

from typing import Any

from training.curriculum.base import CurriculumError, Strategy
from training.curriculum.dynamic_sampling import DynamicSampling
from training.curriculum.greso import Greso
from training.curriculum.mopps import Mopps
from training.curriculum.pools import Pools
from training.curriculum.posterior import Posterior
from training.curriculum.seventy_five import SeventyFive
from training.curriculum.uniform import Uniform

STRATEGIES: dict[str, type[Any]] = {
    "posterior": Posterior,
    "seventy_five": SeventyFive,
    "uniform": Uniform,
    "dynamic_sampling": DynamicSampling,
    "pools": Pools,
    "greso": Greso,
    "mopps": Mopps,
}


def build(name: str, **settings: Any) -> Strategy:
    """A strategy from its name and settings (its dataclass fields).

    Raises CurriculumError on an unknown name or setting, or on settings that contradict each other.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise CurriculumError(f"no curriculum strategy {name!r}; choose one of {', '.join(sorted(STRATEGIES))}")
    known = strategy.__dataclass_fields__
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise CurriculumError(f"strategy {name!r} has no setting {unknown}; it has {', '.join(sorted(known))}")
    built: Strategy = strategy(**settings)
    return built
