"""Dr. GRPO: PPO's clip; what differs is outside the token: no std division, a fixed-length normaliser."""

from __future__ import annotations

from dataclasses import dataclass

from training.losses.base import PerToken, TokenTerms
from training.losses.ppo_clip import check_clip_range, clipped_surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo:
    """`L_t = -min(r_t A_t, clip(r_t) A_t)`, to be used with unscaled advantages and `FixedLength`.

    Source: Dr. GRPO, arXiv 2503.20783, Sec. 3.2: `A = r - mean(r)` and one constant in place of each response's
    length. The trainer refuses it with any other aggregation, and with scaled advantages it would be GRPO.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2

    name = "dr_grpo"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)

    def __call__(self, terms: TokenTerms) -> PerToken:
        return clipped_surrogate(terms.ratio_N, terms.advantages_N, self.clip_low, self.clip_high)
