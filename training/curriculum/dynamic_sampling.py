"""Dynamic sampling (DAPO, arXiv:2503.14476): draw at random, discard groups without gradient, draw again.

Here a refill asks for exactly as many groups as are missing, so no useful group is discarded: the published code
draws a surplus to save rounds, which costs rollouts.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.curriculum.base import Selection
from training.curriculum.baseline import Baseline, unvisited_now
from training.curriculum.decide import check_request, cycle, generator
from training.curriculum.ledger import State


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSampling(Baseline):
    """Uniform draws, repeated until enough groups carry gradient."""

    name: str = "dynamic_sampling"
    max_refills: int = 8

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """`n` tasks at random among those this policy version has not visited; fewer when they run out."""
        check_request(self.name, state, n, policy_version)
        free = unvisited_now(state, policy_version)
        first_round = len(free) == len(state.tasks.ids)
        rows = cycle(free, n if first_round else min(n, len(free)), generator(seed, policy_version, 0))
        picks = [self.pick(r, "any", "drawn at random; drawn again if it carries no gradient") for r in rows]
        return self.selection(state, picks, policy_version, seed)
