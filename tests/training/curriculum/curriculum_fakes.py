"""A small pool and evidence with literal counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from environments.types import Limits, Split, TaskPool, TaskSpec
from training.curriculum.base import Evidence, Kind, Selection, Strategy
from training.curriculum.ledger import State


def task(number: int, *, kin: int = 0, instruction: str = "") -> TaskSpec:
    """Task `t<number>` of kin `kin`."""
    return TaskSpec(
        task_id=f"t{number}",
        suite="fake",
        instruction=instruction,
        seed=number,
        horizon=3,
        limits=Limits(max_turns=4, max_tokens=50),
        tags=(f"kin:{kin}",),
    )


def pool(size: int, *, num_kin: int = 1, split: Split = "train") -> TaskPool:
    """Tasks t0, t1, ... with kin going round."""
    return TaskPool(name="fake", version=1, split=split, tasks=tuple(task(i, kin=i % num_kin) for i in range(size)))


def group(
    spec: TaskSpec, passes: int, size: int, *, version: int = 0, kind: Kind = "training", tag: str = "g"
) -> list[Evidence]:
    """A group of `size` rollouts of which the first `passes` passed; 10 tokens each."""
    name = f"{tag}-{spec.task_id}-{version}"
    return [
        Evidence(
            rollout_id=f"{name}-{i}",
            group_id=name,
            task_id=spec.task_id,
            task_digest=spec.digest,
            policy_version=version,
            passed=i < passes,
            reward=float(i < passes),
            kind=kind,
            tokens=10,
        )
        for i in range(size)
    ]


def roll(selection: Selection, rates: Sequence[float], rng: np.random.Generator, tag: str = "") -> list[Evidence]:
    """Roll a selection out at true pass rates (task `t<i>` has rates[i])."""
    return [
        Evidence(
            rollout_id=f"{tag}{selection.policy_version}-{g}-{i}",
            group_id=f"{tag}{selection.policy_version}-{g}",
            task_id=d.task_id,
            task_digest=d.task_digest,
            policy_version=selection.policy_version,
            passed=bool(passed),
            reward=float(passed),
            kind=d.kind,
        )
        for g, d in enumerate(selection.decisions)
        for i, passed in enumerate(rng.random(d.group_size) < rates[int(d.task_id[1:])])
    ]


def iterate(
    strategy: Strategy, state: State, rates: Sequence[float], *, versions: range, groups: int, seed: int = 0
) -> State:
    """Play whole iterations; what is rolled in version v depends on v and `seed` alone."""
    for version in versions:
        rng = np.random.default_rng([seed, version])
        probes = strategy.probes(state, policy_version=version, seed=seed)
        state = strategy.fold(state, roll(probes, rates, rng, "p"))
        chosen = strategy.select(state, groups, policy_version=version, seed=seed)
        state = strategy.fold(state, roll(chosen, rates, rng))
    return state
