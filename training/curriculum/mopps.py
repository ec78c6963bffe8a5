"""MoPPS (arXiv:2507.04632): a fading Beta posterior per task, one Thompson draw, take those nearest to a target.

The update is alpha <- discount * alpha + (1 - discount) * alpha_0 + passes, and likewise beta with the fails, per
visit and whatever the number of rollouts. (The published code loses the first two terms when a group has one
rollout, by operator precedence.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Selection, need
from training.curriculum.baseline import Baseline
from training.curriculum.decide import check_request, generator, top_rows
from training.curriculum.ledger import Aging, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Mopps(Baseline):
    """Prior Beta(1, 1); `discount` per visit; `target` pass rate."""

    discount: float = 0.5
    target: float = 0.5
    name: str = "mopps"

    def __post_init__(self) -> None:
        Baseline.__post_init__(self)
        need(0 < self.target < 1, f"target is {self.target}; want a pass rate in (0, 1)")

    @property
    def aging(self) -> Aging:
        """Evidence fades at each visit."""
        return Aging(discount=self.discount, per="visit")

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """The `n` tasks whose drawn pass rate is nearest to the target."""
        check_request(self.name, state, n, policy_version)
        beliefs = self.beliefs(state, policy_version)
        drawn = generator(seed, policy_version, 0).beta(beliefs.alpha_N, beliefs.beta_N)
        rows = top_rows(np.asarray(1.0 - np.abs(drawn - self.target)), n)
        picks = [self.pick(r, "drawn", f"drew {drawn[r]:.2f}, near {self.target:.2f}") for r in rows]
        return self.selection(state, picks, policy_version, seed)
