"""No curriculum: every task is as likely as any other. What every saving is measured against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Selection
from training.curriculum.baseline import Baseline
from training.curriculum.decide import check_request, cycle, generator
from training.curriculum.ledger import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform(Baseline):
    """Draw tasks without replacement."""

    name: str = "uniform"

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """`n` tasks at random."""
        check_request(self.name, state, n, policy_version)
        rows = cycle(np.arange(len(state.tasks.ids)), n, generator(seed, policy_version, 0))
        picks = [self.pick(r, "any", "drawn at random") for r in rows]
        return self.selection(state, picks, policy_version, seed)
