"""From (seed, horizon) to a broken world: which apps there are, which faults they have, what may change."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.suites.service_repair.apps import APP_NAMES, App, checker_files, draw_app, healthy
from environments.suites.service_repair.faults import KINDS
from environments.suites.service_repair.faults.base import FaultKind, Leeway, Planted
from environments.suites.service_repair.tree import Tree, to_tar
from environments.types import Split
from infra.digests import digest_of

VERSION = 1
MIN_HORIZON, MAX_HORIZON = 3, 50
_MAX_APPS = 4
_FAULTS_PER_APP = 5
_FINAL_CHECK_TURNS = 1
_HELD_OUT_SHARE = 0.3
_SPLIT_SALT = 26  # gives both splits several single kinds, so that both have tasks of 3 and of 4 turns
_CACHE = KINDS["stale_cache"]
_PLAIN = tuple(kind for kind in KINDS.values() if kind is not _CACHE)
_LOOSER: tuple[Leeway, ...] = ("mode", "first_line", "lines", "any")


@dataclass(frozen=True, slots=True)
class Blueprint:
    """One world. `faults` stand in the order in which the check shows them; `well` is the healthy tree."""

    apps: tuple[App, ...]
    faults: tuple[Planted, ...]
    well: Tree
    broken: Tree

    @property
    def may_change(self) -> Mapping[str, Leeway]:
        """The paths that a mend touches, each with the widest leeway that one of its faults gives."""
        merged: dict[str, Leeway] = {}
        for fault in self.faults:
            for path, leeway in fault.may_change.items():
                merged[path] = max(merged.get(path, leeway), leeway, key=_LOOSER.index)
        return merged


def split_of(kinds: Sequence[str]) -> Split:
    """The split that a combination of kinds belongs to: a hash decides, about 3 in 10 are held out."""
    share = int(digest_of(["service_repair", _SPLIT_SALT, sorted(set(kinds))])[:8], 16) / 2**32
    return "held_out" if share < _HELD_OUT_SHARE else "train"


def kinds_of(seed: int, horizon: int) -> tuple[str, ...]:
    """The set of kinds of this world, sorted. Raises ValueError out of 3..50 turns."""
    return tuple(sorted({kind.name for kind in _draw_kinds(horizon, _rng("kinds", seed, horizon))}))


@functools.lru_cache(maxsize=256)
def blueprint(seed: int, horizon: int) -> Blueprint:
    """The world of this seed whose reference takes `horizon` turns. Raises ValueError out of 3..50 turns."""
    rng = _rng("world", seed, horizon)
    placed = _place(_draw_kinds(horizon, _rng("kinds", seed, horizon)), rng)
    names = rng.sample(APP_NAMES, len(placed))
    apps = tuple(draw_app(name, rng) for name in names)
    well = dict(checker_files(apps))
    for app in apps:
        well |= healthy(app)
    broken = dict(well)
    faults = tuple(
        kind.plant(broken, app, rng)
        for app, kinds in sorted(zip(apps, placed, strict=True), key=lambda pair: _CACHE in pair[1])
        for kind in sorted(kinds, key=lambda k: k.stage)
    )
    return Blueprint(apps=apps, faults=faults, well=well, broken=broken)


@functools.lru_cache(maxsize=64)
def broken_tar(seed: int, horizon: int) -> bytes:
    """The broken world as a tar."""
    return to_tar(blueprint(seed, horizon).broken)


def _rng(purpose: str, seed: int, horizon: int) -> random.Random:
    return random.Random(f"service_repair {VERSION} {purpose} {seed} {horizon}")


def _draw_kinds(horizon: int, rng: random.Random) -> tuple[FaultKind, ...]:
    """Kinds, repeats allowed, whose turns and the final check's add up to `horizon`."""
    if not MIN_HORIZON <= horizon <= MAX_HORIZON:
        raise ValueError(f"horizon is {horizon}; service_repair has tasks of {MIN_HORIZON}..{MAX_HORIZON} turns")
    left = horizon - _FINAL_CHECK_TURNS
    drawn: list[FaultKind] = []
    for _ in range(1 + horizon // 25):
        if left >= 2 * _CACHE.turns and rng.random() < 0.25:
            drawn.append(_CACHE)
            left -= _CACHE.turns
    cheapest = min(kind.turns for kind in _PLAIN)
    while left:
        fitting = [k for k in _PLAIN if k.turns == left or left - k.turns >= cheapest]
        drawn.append(rng.choice(fitting))
        left -= drawn[-1].turns
    return tuple(drawn)


def _place(kinds: Sequence[FaultKind], rng: random.Random) -> list[list[FaultKind]]:
    """Share the kinds among apps: no two on one app that need the same part, a cache only over another fault."""
    plain = [k for k in kinds if k is not _CACHE]
    num_caches = kinds.count(_CACHE)
    wanted = min(_MAX_APPS, 1 + len(plain) // _FAULTS_PER_APP + rng.randrange(2))
    apps: list[list[FaultKind]] = [[] for _ in range(max(wanted, num_caches))]
    for index, kind in enumerate(plain):
        free = [app for app in apps if all(kind.slots.isdisjoint(other.slots) for other in app)]
        if not free:
            free = [[]]
            apps.append(free[0])
        chosen = apps[index] if index < num_caches else rng.choice(free)  # a fault for each cache to hide
        chosen.append(kind)
    hiding = rng.sample([app for app in apps if app], num_caches)
    for app in hiding:
        app.append(_CACHE)
    return apps
