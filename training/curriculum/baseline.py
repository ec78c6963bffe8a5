"""What the simple strategies share: each task on its own from Beta(1, 1), no marks, no probes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from environments.types import TaskPool
from training.curriculum import ledger, pool
from training.curriculum.base import Evidence, Selection, need
from training.curriculum.beliefs import Beliefs, flat
from training.curriculum.decide import Pick, check_owner, check_request, decisions_of
from training.curriculum.ledger import Aging, Ints, State
from training.curriculum.signal import AdvantageMode, interval_90


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A strategy lacking only `select`. `advantage` is the trainer's estimator; it is used to report signal."""

    group_size: int = 8
    advantage: AdvantageMode = "std"
    name: str = "baseline"
    max_refills: int = 0

    def __post_init__(self) -> None:
        need(self.group_size >= 2, f"group_size is {self.group_size}; want at least 2 (one rollout has no baseline)")
        need(self.max_refills >= 0, f"max_refills is {self.max_refills}; want >= 0")

    @property
    def aging(self) -> Aging:
        """No fading, unless a strategy says otherwise."""
        return Aging()

    def start(self, tasks: TaskPool) -> State:
        """The state before any evidence."""
        return pool.start(tasks, self.name)

    def fold(self, state: State, evidence: Sequence[Evidence]) -> State:
        """Add evidence."""
        check_owner(self.name, state)
        return ledger.fold(state, evidence, self.aging)[0]

    def beliefs(self, state: State, policy_version: int) -> Beliefs:
        """What is believed of every task at a policy version."""
        return flat(state, self.aging, policy_version)

    def probes(self, state: State, *, policy_version: int, seed: int) -> Selection:
        """Nothing: training rollouts are all the evidence there is."""
        check_request(self.name, state, 1, policy_version)
        return self.selection(state, (), policy_version, seed)

    def pick(self, row: int, word: str, why: str) -> Pick:
        """One ordinary group."""
        return Pick(row=int(row), group_size=self.group_size, state=word, why=why)

    def selection(
        self,
        state: State,
        picks: Sequence[Pick],
        policy_version: int,
        seed: int,
        tally: tuple[tuple[str, int], ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Selection:
        """Wrap picks with what was believed of them."""
        return Selection(
            strategy=self.name,
            policy_version=policy_version,
            seed=seed,
            decisions=decisions_of(state, self.beliefs(state, policy_version), picks, self.advantage),
            tally=tally,
            notes=notes,
        )

    def explain(self, state: State, task_id: str, *, policy_version: int) -> tuple[str, ...]:
        """Evidence and posterior."""
        row = state.tasks.row(task_id)
        beliefs = self.beliefs(state, policy_version)
        a, b = beliefs.alpha_N[row : row + 1], beliefs.beta_N[row : row + 1]
        low, high = interval_90(a, b)
        return (
            f"{task_id}: {self.decision_line(state, row, policy_version)}",
            f"pass rate {a[0] / (a[0] + b[0]):.2f}, 90% interval {low[0]:.2f} to {high[0]:.2f}, "
            f"Beta({a[0]:.2f}, {b[0]:.2f})",
            *evidence_lines(state, row),
        )

    def decision_line(self, state: State, row: int, policy_version: int) -> str:
        """What the strategy would do with a task now, and why. Overridden where there is something to say."""
        return f"{self.name} treats it like any other task"


def evidence_lines(state: State, row: int) -> tuple[str, ...]:
    """The plain record of one task."""
    c = state.columns
    newest = f"{c.batch_passes[row]} of {c.batch_size[row]} at policy version {c.last_version[row]}"
    return (
        f"evidence: {c.rollouts[row]} rollouts in {c.visits[row]} visits ({c.probes[row]} of them probes), "
        f"{c.passed[row]} passed, {c.tokens[row]} tokens",
        f"newest visit: {newest if c.visits[row] else 'none'}",
    )


def unvisited_now(state: State, policy_version: int) -> Ints:
    """Rows not yet visited by this policy version; what a refill may draw from. [M]"""
    return np.flatnonzero(state.columns.last_version != policy_version)
