"""Strategies by name: the one place that knows them all. (The oracle is not here: no run can know the truth.)"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

from training.curriculum.base import CurriculumError, Strategy, need
from training.curriculum.dynamic_sampling import DynamicSampling
from training.curriculum.greso import Greso
from training.curriculum.mopps import Mopps
from training.curriculum.pools import Pools
from training.curriculum.posterior import Posterior
from training.curriculum.seventy_five import SeventyFive
from training.curriculum.signal import AdvantageMode
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


def build(
    name: str,
    *,
    group_size: int = 8,
    advantage: AdvantageMode = "std",
    settings: Mapping[str, float] | None = None,
) -> Strategy:
    """A strategy from its name and its own settings (see `settings_of`); the others keep their defaults.

    Raises CurriculumError on an unknown name or setting, or on settings that contradict each other.
    """
    strategy = STRATEGIES.get(name)
    if strategy is None:
        raise CurriculumError(f"no curriculum strategy {name!r}; choose one of {', '.join(sorted(STRATEGIES))}")
    plain = strategy(group_size=group_size, advantage=advantage)
    known = settings_of(plain)
    unknown = sorted(set(settings or {}) - set(known))
    if unknown:
        raise CurriculumError(f"strategy {name!r} has no setting {unknown}; it has {', '.join(sorted(known))}")
    built: Strategy = _with(plain, settings or {})
    return built


def settings_of(part: Any) -> dict[str, float | None]:
    """What can be set of a strategy, as it is: numbers and switches by name; None follows from other settings.

    Settings of a part of it have its name before theirs.

    >>> settings_of(SeventyFive())
    {'max_refills': 0, 'probe_size': 8, 'every': 1, 'low': 0.2, 'high': 0.75}
    >>> settings_of(Posterior())['prior.learns']
    True
    """
    out: dict[str, float | None] = {}
    for name, kind in _kinds(type(part)).items():
        value = getattr(part, name)
        inner = {f"{name}.{n}": v for n, v in settings_of(value).items()} if dataclasses.is_dataclass(kind) else None
        out |= {name: value} if inner is None else inner
    return out


def _kinds(cls: type) -> dict[str, Any]:
    """The type of each field that can be set; the group size and the advantage are settings of the run."""
    kinds: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        (kind, *others) = [k for k in get_args(hints[field.name]) if k is not NoneType] or [hints[field.name]]
        can_be = kind in (bool, int, float) or dataclasses.is_dataclass(kind)
        if can_be and not others and field.name != "group_size":
            kinds[field.name] = kind
    return kinds


def _with(part: Any, settings: Mapping[str, float]) -> Any:
    changes: dict[str, Any] = {}
    for name, kind in _kinds(type(part)).items():
        inner = {n.removeprefix(f"{name}."): v for n, v in settings.items() if n.startswith(f"{name}.")}
        if inner:
            changes[name] = _with(getattr(part, name), inner)
        elif name in settings:
            changes[name] = _as(kind, name, settings[name])
    return dataclasses.replace(part, **changes)


def _as(kind: type, name: str, value: float) -> float:
    """A number as its setting's type: 10.0 rollouts are 10, 2.5 are none."""
    if kind is bool:
        need(value in (0, 1), f"{name} is {value}; want true or false")
    if kind is int:
        need(value == round(value), f"{name} is {value}; want a whole number")
    converted: float = kind(value)
    return converted
