"""GSPO: one ratio for the whole rollout, the geometric mean of its tokens' ratios."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.losses.base import PerToken, TokenTerms
from training.losses.ppo_clip import check_clip_range, clipped_surrogate


def sequence_log_ratio(terms: TokenTerms) -> Tensor:
    """`mean_t(log r_t)` of each token's rollout, given back per token `[N]`, with gradient to all its tokens."""
    index_N = terms.rollout_index_N
    num_rollouts = int(index_N.max()) + 1 if index_N.numel() else 0
    log_ratio_N = terms.logprobs_N - terms.base_logprobs_N
    sums_R = log_ratio_N.new_zeros(num_rollouts).index_add(0, index_N, log_ratio_N)
    counts_R = log_ratio_N.new_zeros(num_rollouts).index_add(0, index_N, torch.ones_like(log_ratio_N))
    return (sums_R / counts_R.clamp(min=1))[index_N]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo:
    """`L_i = -min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)`, `s_i = exp(mean_t log r_it)`.

    Source: GSPO, arXiv 2507.18071, Eq. 5-7. Every token of the rollout carries `L_i`, so the rollout mean gives
    the published objective. Not token-local: a rollout's chains must lie in one microbatch.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    name = "gspo"
    token_local = False
    needs_reference = False

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)

    def __call__(self, terms: TokenTerms) -> PerToken:
        ratio_N = torch.exp(sequence_log_ratio(terms))
        return clipped_surrogate(ratio_N, terms.advantages_N, self.clip_low, self.clip_high)
