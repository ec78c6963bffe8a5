"""DAPO: a higher upper clip, and optionally the dual clip for negative advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.losses.base import LossConfigError, PerToken, TokenTerms
from training.losses.ppo_clip import check_clip_range, clipped_surrogate


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo:
    """`L_t = -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t)`, for A < 0 at most `-dual_clip * A_t`.

    Sources: DAPO, arXiv 2503.14476, Eq. 8 (clip-higher, token mean); dual clip: arXiv 1912.09729, Eq. 5. With
    `dual_clip` None it is DAPO as published; the dual clip zeroes the gradient of bad tokens whose ratio exceeds it.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None

    name = "dapo"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)
        if self.dual_clip is not None and not self.dual_clip > 1 + self.clip_high:
            raise LossConfigError(
                f"dual_clip is {self.dual_clip}; want more than 1 + clip_high = {1 + self.clip_high}, or None (off)"
            )

    def __call__(self, terms: TokenTerms) -> PerToken:
        surrogate = clipped_surrogate(terms.ratio_N, terms.advantages_N, self.clip_low, self.clip_high)
        if self.dual_clip is None:
            return surrogate
        bound_N = -self.dual_clip * terms.advantages_N
        binds_N = (terms.advantages_N < 0) & (surrogate.loss_N > bound_N)
        return PerToken(loss_N=torch.where(binds_N, bound_N, surrogate.loss_N), clipped_N=surrogate.clipped_N | binds_N)
