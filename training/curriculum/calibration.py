"""Whether what a strategy believes comes true: reliability of its predictions, on plays or on real logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from environments.types import TaskPool
from training.curriculum.base import Evidence, Strategy, need
from training.curriculum.ledger import Floats
from training.curriculum.signal import mixed_predictive


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Predictions of like size: their mean, the share that came true, and how many there are."""

    expected: float
    seen: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Predictions against outcomes. `gap` is the mean |expected - seen| over bins, weighted by count.

    `bias` is the mean prediction less the share that came true; `brier` the mean squared error; `nats` the mean
    of -log of the probability given to what came, at most `log(1000)` each.
    """

    bins: tuple[Bin, ...]
    gap: float
    bias: float
    brier: float
    nats: float


def reliability(expected: Floats, seen: Floats, *, num_bins: int = 10) -> Reliability:
    """Sort predictions [M] in [0, 1] into equal bins and compare with outcomes [M] of 0 or 1."""
    need(len(expected) == len(seen) > 0, f"{len(expected)} predictions, {len(seen)} outcomes; want one each")
    place = np.minimum((expected * num_bins).astype(np.int64), num_bins - 1)
    bins = tuple(
        Bin(
            expected=float(expected[place == b].mean()),
            seen=float(seen[place == b].mean()),
            count=int((place == b).sum()),
        )
        for b in np.unique(place)
    )
    return Reliability(
        bins=bins,
        gap=sum(b.count * abs(b.expected - b.seen) for b in bins) / len(expected),
        bias=float(expected.mean() - seen.mean()),
        brier=float(((expected - seen) ** 2).mean()),
        nats=float(-np.log(np.clip(np.where(seen > 0, expected, 1 - expected), 1e-3, 1)).mean()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """One a group [M]: the probability that it would be mixed, and whether it was (0 or 1)."""

    expected: Floats
    seen: Floats

    @staticmethod
    def joined(parts: Sequence[Predictions]) -> Predictions:
        """Those of several logs together."""
        return Predictions(
            expected=np.concatenate([p.expected for p in parts]), seen=np.concatenate([p.seen for p in parts])
        )


def predict(strategy: Strategy, tasks: TaskPool, evidence: Sequence[Evidence]) -> Predictions:
    """Go through a run's log: before each policy version's evidence predict which groups are mixed, then fold it.

    This judges belief, not choice: another strategy would have rolled out other tasks.
    """
    state = strategy.start(tasks)
    expected: list[float] = []
    seen: list[float] = []
    for version in sorted({e.policy_version for e in evidence}):
        now = [e for e in evidence if e.policy_version == version and e.task_id in state.tasks.rows]
        groups: dict[str, list[Evidence]] = {}
        for item in now:
            groups.setdefault(item.group_id, []).append(item)
        beliefs = strategy.beliefs(state, version)
        for members in groups.values():
            row = state.tasks.rows[members[0].task_id]
            a, b = beliefs.alpha_N[row : row + 1], beliefs.beta_N[row : row + 1]
            expected.append(float(mixed_predictive(a, b, len(members))[0]))
            seen.append(float(len({m.passed for m in members}) == 2))
        state = strategy.fold(state, now)
    return Predictions(expected=np.array(expected), seen=np.array(seen))
