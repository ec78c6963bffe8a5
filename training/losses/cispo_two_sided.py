"""CISPO with a lower bound too: the convention of several public trainers, for comparison with them."""

from __future__ import annotations

from dataclasses import dataclass

from training.losses.base import LossConfigError, PerToken, TokenTerms
from training.losses.cispo import check_max_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoTwoSided:
    """`L_t = -sg(clamp(r_t, min_ratio, max_ratio)) * A_t * log pi_theta(o_t)`; both bounds are absolute.

    Source: MiniMax-M1, arXiv 2506.13585, Eq. 5 with both bounds on. A lower bound lifts the weight of tokens that
    the policy has left behind, so it is biased where Cispo is not. No defaults: the pair is the convention.
    """

    min_ratio: float
    max_ratio: float

    name = "cispo_two_sided"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_max_ratio(self.max_ratio)
        if not 0 <= self.min_ratio < 1:
            raise LossConfigError(f"min_ratio is {self.min_ratio}; want an absolute bound in [0, 1)")

    def __call__(self, terms: TokenTerms) -> PerToken:
        ratio_N = terms.ratio_N.detach()
        weight_N = ratio_N.clamp(self.min_ratio, self.max_ratio)
        return PerToken(loss_N=-weight_N * terms.advantages_N * terms.logprobs_N, clipped_N=weight_N != ratio_N)
