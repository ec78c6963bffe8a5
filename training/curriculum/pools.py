"""Difficulty pools, as in prime-rl's buffer: hard, normal and easy tasks by the latest group alone, no probes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Selection, need
from training.curriculum.baseline import Baseline
from training.curriculum.decide import check_request, generator, tally_of, top_rows
from training.curriculum.ledger import Ints, State

WORDS = ("hard", "normal", "easy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools(Baseline):
    """Hard: latest group mean <= `low`. Easy: > `high`. A task is drawn in proportion to its pool's weight."""

    low: float = 0.25
    high: float = 0.75
    hard_weight: float = 0.2
    normal_weight: float = 1.0
    easy_weight: float = 0.2
    name: str = "pools"

    def __post_init__(self) -> None:
        Baseline.__post_init__(self)
        need(0 <= self.low < self.high <= 1, f"pools {self.low}..{self.high}; want 0 <= low < high <= 1")
        weights = (self.hard_weight, self.normal_weight, self.easy_weight)
        need(min(weights) > 0, f"pool weights are {weights}; want each above 0, or its tasks are never seen again")

    def pool_of(self, state: State) -> Ints:
        """0 hard, 1 normal (also: never visited), 2 easy. [N]"""
        c = state.columns
        rate = c.batch_passes / np.maximum(c.batch_size, 1)
        code = (rate > self.low).astype(np.int64) + (rate > self.high)
        return np.where(c.visits > 0, code, 1)

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """`n` tasks without replacement by weight (Gumbel keys, so that one draw gives them all)."""
        check_request(self.name, state, n, policy_version)
        code = self.pool_of(state)
        weight = np.array([self.hard_weight, self.normal_weight, self.easy_weight])[code]
        key = np.log(weight) + generator(seed, policy_version, 0).gumbel(size=len(weight))
        rows = top_rows(np.asarray(key - key.min()), n)
        picks = [self.pick(r, WORDS[code[r]], f"pool weight {weight[r]:g}") for r in rows]
        return self.selection(state, picks, policy_version, seed, tally_of(WORDS, code))

    def decision_line(self, state: State, row: int, policy_version: int) -> str:
        """The pool and its bounds."""
        word = WORDS[self.pool_of(state)[row]]
        return f"{word}, by its latest group alone (hard <= {self.low:.0%}, easy > {self.high:.0%})"
