"""M1's unified mask: CISPO's weighted log-likelihood with PPO's trust region put back as a mask."""

from __future__ import annotations

from dataclasses import dataclass

from training.losses.base import PerToken, TokenTerms
from training.losses.cispo import check_max_ratio
from training.losses.ppo_clip import check_clip_range


@dataclass(frozen=True, slots=True, kw_only=True)
class M1Mask:
    """`L_t = -M_t * sg(min(r_t, max_ratio)) * A_t * log pi_theta(o_t)`.

    `M_t = 0` where (A > 0 and r > 1 + clip_high) or (A < 0 and r < 1 - clip_low), else 1. Source: MiniMax-M1,
    arXiv 2506.13585, Eq. 6-7. Inside the trust region the gradient is PPO's.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    max_ratio: float = 5.0

    name = "m1_mask"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)
        check_max_ratio(self.max_ratio)

    def __call__(self, terms: TokenTerms) -> PerToken:
        ratio_N, advantages_N = terms.ratio_N.detach(), terms.advantages_N
        above_N = (advantages_N > 0) & (ratio_N > 1 + self.clip_high)
        below_N = (advantages_N < 0) & (ratio_N < 1 - self.clip_low)
        masked_N = above_N | below_N
        weight_N = ratio_N.clamp(max=self.max_ratio).masked_fill(masked_N, 0.0)
        return PerToken(
            loss_N=-weight_N * advantages_N * terms.logprobs_N, clipped_N=masked_N | (ratio_N > self.max_ratio)
        )
