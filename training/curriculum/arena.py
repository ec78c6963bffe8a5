"""Play a strategy against a simulated world, every rollout counted, probes and discarded groups included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from training.curriculum.base import Evidence, Selection, Strategy
from training.curriculum.ledger import State
from training.curriculum.signal import mixed_predictive
from training.curriculum.simulator import NUM_TASKS, Floats, World, group_mass, learn, task_pool

MakeStrategy = Callable[[Callable[[], Floats]], Strategy]
"""Builds a strategy; what it is given reads the true pass rates, which only the oracle may call."""


@dataclass(slots=True)
class Log:
    """One play. Lists have one value a step; `expected` and `mixed` one a group.

    `rollouts` is cumulative. `useful` counts groups with gradient that were trained on, of `trained`.
    `expected` is the believed probability that a group is mixed, `mixed` whether it was, probes included.
    `spearman` is the rank correlation of believed and true pass rates over the pool, every 10 steps.
    """

    rollouts: list[int] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    useful: list[int] = field(default_factory=list)
    probes: list[int] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    mixed: list[bool] = field(default_factory=list)
    spearman: list[float] = field(default_factory=list)
    final_rate: Floats = field(default_factory=lambda: np.zeros(0))
    best_rate: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(slots=True)
class _Table:
    """The running play: the world changes only in `learn`, the state only in `fold`."""

    world: World
    state: State
    strategy: Strategy
    rng: np.random.Generator
    log: Log
    spent: int = 0

    def roll(self, selection: Selection, version: int, tag: str) -> list[tuple[int, int, int, bool]]:
        """Roll a selection out and fold it in. Returns (row, size, passes, trains) of each group."""
        if not selection.decisions:
            return []
        rows = np.array([self.state.tasks.rows[d.task_id] for d in selection.decisions])
        size = np.array([d.group_size for d in selection.decisions])
        passes = self.rng.binomial(size, self.world.rate_N[rows])
        evidence = [
            Evidence(
                rollout_id=f"{version}{tag}{g}.{i}",
                group_id=f"{version}{tag}{g}",
                task_id=d.task_id,
                task_digest=d.task_digest,
                policy_version=version,
                passed=i < passes[g],
                reward=float(i < passes[g]),
                kind=d.kind,
            )
            for g, d in enumerate(selection.decisions)
            for i in range(d.group_size)
        ]
        self.state = self.strategy.fold(self.state, evidence)
        self.spent += int(size.sum())
        self.log.probes.append(selection.num_probe_rollouts)
        mixed = (passes > 0) & (passes < size)
        trains = [d.trains for d in selection.decisions]
        self.log.expected += expected_mixed(selection).tolist()
        self.log.mixed += mixed.tolist()
        return list(zip(rows.tolist(), size.tolist(), passes.tolist(), trains, strict=True))


def expected_mixed(selection: Selection) -> Floats:
    """Predictive probability that each decision's group carries gradient. [num decisions]"""
    alpha, beta, size = np.array([(d.alpha, d.beta, d.group_size) for d in selection.decisions]).T
    out = np.empty(len(size))
    for g in np.unique(size):
        out[size == g] = mixed_predictive(alpha[size == g], beta[size == g], int(g))
    return out


def play(
    make: MakeStrategy, world: World, *, groups_per_step: int, max_rollouts: int, seed: int, until: float = 1.0
) -> Log:
    """Train step by step until `max_rollouts` are spent or the held-out mean reaches `until`."""
    holder = [world]
    strategy = make(lambda: holder[0].rate_N)
    table = _Table(world, strategy.start(task_pool(world)), strategy, np.random.default_rng([seed, 1]), Log())
    table.log.best_rate = world.rate_N
    version = 0
    while table.spent < max_rollouts and table.world.held_out < until:
        groups = _step(table, groups_per_step, version, seed)
        mass = np.zeros(NUM_TASKS)
        for row, size, passes, _ in groups:
            mass[row] += float(group_mass(np.array(passes), np.array(size), world.mode))
        table.world = learn(table.world, mass, table.rng)
        holder[0] = table.world
        _record(table, groups, version)
        version += 1
    table.log.final_rate = table.world.rate_N
    return table.log


def _step(table: _Table, n: int, version: int, seed: int) -> list[tuple[int, int, int, bool]]:
    """Probes, a selection, and as many refills as the strategy wants; returns the groups to train on."""
    strategy = table.strategy
    probes = strategy.probes(table.state, policy_version=version, seed=seed)
    groups = table.roll(probes, version, "p")
    groups += table.roll(strategy.select(table.state, n, policy_version=version, seed=seed), version, "s")
    for refill in range(strategy.max_refills):
        missing = n - sum(0 < k < g for _, g, k, trains in groups if trains)
        if missing <= 0 or not (table.state.columns.last_version != version).any():
            break
        again = strategy.select(table.state, missing, policy_version=version, seed=seed + 1000 * (refill + 1))
        groups += table.roll(again, version, f"r{refill}-")
    return [g for g in groups if g[3]]


def _record(table: _Table, groups: list[tuple[int, int, int, bool]], version: int) -> None:
    log = table.log
    log.rollouts.append(table.spent)
    log.held_out.append(table.world.held_out)
    log.trained.append(len(groups))
    log.useful.append(sum(0 < k < g for _, g, k, _ in groups))
    log.best_rate = np.maximum(log.best_rate, table.world.rate_N)
    if version % 10 == 9:
        believed = table.strategy.beliefs(table.state, version + 1).mean_N
        log.spearman.append(float(stats.spearmanr(believed, table.world.rate_N).statistic))
