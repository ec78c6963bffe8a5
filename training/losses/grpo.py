"""GRPO: PPO's clip with an optional k3 penalty against the start policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.losses.base import LossConfigError, PerToken, TokenTerms
from training.losses.ppo_clip import check_clip_range, clipped_surrogate


def k3(logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """`exp(d) - d - 1` with `d = log pi_other - log pi`: >= 0, unbiased for KL(pi || pi_other) on samples of pi.

    Source: DeepSeek-R1, arXiv 2501.12948, Eq. 2.
    """
    difference = other_logprobs - logprobs
    return torch.exp(difference) - difference - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """`L_t = -min(r_t A_t, clip(r_t) A_t) + kl_beta * k3_t` against the start policy.

    Source: DeepSeek-R1, arXiv 2501.12948, Eq. 1-3. With `kl_beta` 0 no reference policy is needed. Its usual
    aggregation is the rollout mean.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_beta: float = 0.0

    name = "grpo"
    token_local = True

    def __post_init__(self) -> None:
        check_clip_range(self.clip_low, self.clip_high)
        if not self.kl_beta >= 0:
            raise LossConfigError(f"kl_beta is {self.kl_beta}; want 0 (off) or a positive number")

    @property
    def needs_reference(self) -> bool:
        """Only a positive `kl_beta` reads the start policy."""
        return self.kl_beta > 0

    def __call__(self, terms: TokenTerms) -> PerToken:
        surrogate = clipped_surrogate(terms.ratio_N, terms.advantages_N, self.clip_low, self.clip_high)
        if not self.needs_reference:
            return surrogate
        if terms.reference_logprobs_N is None:
            raise LossConfigError(f"grpo with kl_beta {self.kl_beta} needs reference log-probabilities; got none")
        penalty_N = k3(terms.logprobs_N, terms.reference_logprobs_N)
        return PerToken(loss_N=surrogate.loss_N + self.kl_beta * penalty_N, clipped_N=surrogate.clipped_N)
