"""GRESO (arXiv:2506.02177): skip tasks in proportion to how often in a row they carried no gradient.

A task whose last c visits were all-pass or all-fail is skipped with probability 1 - max(p^c, floor); p differs for
easy (all-pass) and hard (all-fail) and is steered so that easy groups are a third, hard groups two thirds, of a
target share of groups without gradient. What is discarded is drawn again, as in dynamic sampling; a refill asks for
exactly what is missing (the paper asks for 1.25 times the expected need, to save rounds).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.curriculum import ledger
from training.curriculum.base import Evidence, Selection, need
from training.curriculum.baseline import Baseline, unvisited_now
from training.curriculum.decide import check_owner, check_request, generator
from training.curriculum.ledger import Floats, Ints, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Greso(Baseline):
    """`start_p` +- `step_p` within `bounds_p`; `floor` is the least probability of a visit."""

    start_p: float = 0.5
    step_p: float = 0.01
    bounds_p: tuple[float, float] = (0.05, 0.95)
    floor: float = 0.01
    target: float = 0.25
    easy_part: float = 1 / 3
    name: str = "greso"
    max_refills: int = 8

    def __post_init__(self) -> None:
        Baseline.__post_init__(self)
        low, high = self.bounds_p
        need(0 < low <= self.start_p <= high < 1, f"start_p {self.start_p} is outside bounds_p {self.bounds_p}")
        need(0 < self.floor <= 1, f"floor is {self.floor}; want (0, 1], or some tasks are never seen again")

    def fold(self, state: State, evidence: Sequence[Evidence]) -> State:
        """Add evidence, then steer p by the shares of easy and hard groups among it."""
        check_owner(self.name, state)
        after, visits = ledger.fold(state, evidence, self.aging)
        if not visits or visits[-1].version < after.version:
            return after
        c, rows = after.columns, visits[-1].rows
        easy = float((c.batch_passes[rows] == c.batch_size[rows]).mean())
        hard = float((c.batch_passes[rows] == 0).mean())
        p = {
            "p_easy": self._steer(state.scalar("p_easy", self.start_p), easy, self.target * self.easy_part),
            "p_hard": self._steer(state.scalar("p_hard", self.start_p), hard, self.target * (1 - self.easy_part)),
        }
        return dataclasses.replace(after, scalars=tuple(sorted(p.items())))

    def _steer(self, p: float, seen: float, target: float) -> float:
        return float(np.clip(p - self.step_p if seen > target else p + self.step_p, *self.bounds_p))

    def visit_probability(self, state: State) -> Floats:
        """Probability that a task is not skipped. [N]"""
        c = state.columns
        p_easy, p_hard = state.scalar("p_easy", self.start_p), state.scalar("p_hard", self.start_p)
        p = np.where(c.batch_passes == 0, p_hard, p_easy)
        return np.asarray(np.maximum(p**c.streak, self.floor))

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """Walk the tasks in random order, skipping, until `n` are found; the walk repeats over what was skipped."""
        check_request(self.name, state, n, policy_version)
        free = unvisited_now(state, policy_version)
        chance = self.visit_probability(state)
        rows = self._walk(free, chance, min(n, len(free)), generator(seed, policy_version, 0))
        streak = state.columns.streak
        picks = [
            self.pick(r, "any", f"{streak[r]} visits without gradient; visited with probability {chance[r]:.2f}")
            for r in rows
        ]
        return self.selection(state, picks, policy_version, seed)

    def _walk(self, free: Ints, chance: Floats, n: int, rng: np.random.Generator) -> Ints:
        found: list[int] = []
        left = free
        while len(found) < n:
            left = rng.permutation(left)
            visit = rng.random(len(left)) < chance[left]
            found.extend(left[visit].tolist())
            left = left[~visit]
        return np.array(found[:n], dtype=np.int64)

    def decision_line(self, state: State, row: int, policy_version: int) -> str:
        """The streak and the probability of a visit."""
        return (
            f"{state.columns.streak[row]} visits in a row without gradient: visited with probability "
            f"{self.visit_probability(state)[row]:.2f} when its turn comes"
        )
