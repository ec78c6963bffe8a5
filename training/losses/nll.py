"""Supervised learning on the same samples: the warm start goes through the very same trainer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.losses.base import PerToken, TokenTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeLogLikelihood:
    """`L_t = -log pi_theta(o_t)`: advantages are not read."""

    name = "nll"
    token_local = True
    needs_reference = False

    def __call__(self, terms: TokenTerms) -> PerToken:
        return PerToken(loss_N=-terms.logprobs_N, clipped_N=torch.zeros_like(terms.logprobs_N, dtype=torch.bool))
