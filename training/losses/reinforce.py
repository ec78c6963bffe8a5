"""REINFORCE: the plain policy gradient, without an importance weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.losses.base import PerToken, TokenTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """`L_t = -A_t * log pi_theta(o_t)`: exact on-policy, biased after the first update on a batch.

    Source: Williams 1992, Machine Learning 8, Eq. 11.
    """

    name = "reinforce"
    token_local = True
    needs_reference = False

    def __call__(self, terms: TokenTerms) -> PerToken:
        return PerToken(
            loss_N=-terms.advantages_N * terms.logprobs_N,
            clipped_N=torch.zeros_like(terms.logprobs_N, dtype=torch.bool),
        )
