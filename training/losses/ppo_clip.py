"""PPO's clipped surrogate on group advantages (no critic), and the clip that its relatives share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.losses.base import LossConfigError, PerToken, TokenTerms


def check_clip_range(clip_low: float, clip_high: float) -> None:
    """Refuse a trust region that is empty, or whose low side reaches zero or below (LossConfigError)."""
    if not 0 < clip_low < 1:
        raise LossConfigError(f"clip_low is {clip_low}; the ratio is kept above 1 - clip_low, so want it in (0, 1)")
    if not clip_high > 0:
        raise LossConfigError(f"clip_high is {clip_high}; the ratio is kept below 1 + clip_high, so want it > 0")


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> PerToken:
    """`-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)` elementwise; the gradient is 0 where the clip wins.

    Source: PPO, arXiv 1707.06347, Eq. 7. `ratio` carries the gradient.
    """
    plain = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return PerToken(loss_N=torch.maximum(plain, clipped), clipped_N=clipped > plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoClip:
    """`L_t = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)`.

    Source: PPO, arXiv 1707.06347, Eq. 7; the advantage comes from the group, there is no critic.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    name = "ppo_clip"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)

    def __call__(self, terms: TokenTerms) -> PerToken:
        return clipped_surrogate(terms.ratio_N, terms.advantages_N, self.clip_low, self.clip_high)
