"""CISPO: clip the importance weight, keep every token's gradient."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from training.losses.base import LossConfigError, LossWarning, PerToken, TokenTerms


def check_max_ratio(max_ratio: float) -> None:
    """Refuse an absolute cap at or below 1 and warn below 2: such numbers are offsets in other code bases."""
    if math.isnan(max_ratio) or max_ratio <= 1:
        raise LossConfigError(
            f"max_ratio is {max_ratio}; it is an absolute cap on pi_theta/pi_base and must exceed 1. "
            f"If it was meant as an offset (1 + eps), write max_ratio={1 + max_ratio}"
        )
    if max_ratio < 2:
        warnings.warn(
            f"max_ratio {max_ratio} is an absolute cap and nearly on-policy; 5.0 is usual", LossWarning, stacklevel=4
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """`L_t = -sg(min(r_t, max_ratio)) * A_t * log pi_theta(o_t)`, `r_t = pi_theta(o_t) / pi_base(o_t)`.

    Source: MiniMax-M1, arXiv 2506.13585, Eq. 4-5, with its lower bound off as there. The gradient is
    `dL/dlogp = -min(r, max_ratio) * A`: no unmasked token loses it. `max_ratio` is an absolute cap without a
    hidden offset; `math.inf` is the plain importance-weighted policy gradient.
    Raises LossConfigError for a cap <= 1; warns (LossWarning) below 2.
    """

    max_ratio: float = 5.0

    name = "cispo"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        check_max_ratio(self.max_ratio)

    def __call__(self, terms: TokenTerms) -> PerToken:
        ratio_N = terms.ratio_N.detach()
        weight_N = ratio_N.clamp(max=self.max_ratio)
        return PerToken(loss_N=-weight_N * terms.advantages_N * terms.logprobs_N, clipped_N=ratio_N > self.max_ratio)
