"""The bound: choose by the true pass rates. Only a simulator can hand them over, so no run can be configured so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Selection, need
from training.curriculum.baseline import Baseline
from training.curriculum.decide import check_request, generator, top_rows
from training.curriculum.ledger import Floats, State
from training.curriculum.signal import mass_per_rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle(Baseline):
    """Take the tasks of highest expected advantage mass at their true rates; `truth()` gives them. [N]"""

    truth: Callable[[], Floats]
    name: str = "oracle"

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """The `n` best tasks, ties at random."""
        check_request(self.name, state, n, policy_version)
        rate = self.truth()
        need(rate.shape == state.columns.passes.shape, f"truth() gave shape {rate.shape}; want one rate a task")
        score = mass_per_rollout(rate, self.group_size, self.advantage)
        tie = generator(seed, policy_version, 0).random(len(score)) * 1e-9
        rows = top_rows(np.asarray(score + tie), n)
        picks = [self.pick(r, "known", f"true pass rate {rate[r]:.3f}") for r in rows]
        return self.selection(state, picks, policy_version, seed)
