"""DISPO: CISPO with bounds of its own for good and for bad tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.losses.base import LossConfigError, PerToken, TokenTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispo:
    """`L_t = -sg(clamp(r_t, low, high)) * A_t * log pi_theta(o_t)`, with one pair of bounds for A > 0, one for A < 0.

    Source: DISPO, arXiv 2602.00983 (AISTATS 2026): `1/sum|o_i| sum sg(r^d) A log pi` with `r^d = clip(r, 1 - eps+_low,
    1 + eps+_high)` for correct responses and `clip(r, 1 - eps-_low, 1 + eps-_high)` for incorrect ones. Read in the
    paper's abstract and in three public transcriptions of its formula that agree, not in the paper's own text; one of
    them gives the eps of the defaults: .2, 10 and 1, 100. Ours are absolute bounds, as everywhere here. The sign of
    the advantage says what is correct, as in those transcriptions; A = 0 has no gradient under either pair.
    Raises LossConfigError unless 0 <= low <= 1 < high.
    """

    correct_min: float = 0.8
    correct_max: float = 11.0
    incorrect_min: float = 0.0
    incorrect_max: float = 101.0

    name = "dispo"
    token_local = True
    needs_reference = False

    def __post_init__(self) -> None:
        for kind, low, high in (
            ("correct", self.correct_min, self.correct_max),
            ("incorrect", self.incorrect_min, self.incorrect_max),
        ):
            if not 0 <= low <= 1 < high:
                raise LossConfigError(
                    f"dispo clamps the ratio of {kind} tokens to [{low}, {high}]; want absolute bounds around 1: "
                    "a lower one in [0, 1] and an upper one above 1"
                )

    def __call__(self, terms: TokenTerms) -> PerToken:
        ratio_N = terms.ratio_N.detach()
        weight_N = torch.where(
            terms.advantages_N > 0,
            ratio_N.clamp(self.correct_min, self.correct_max),
            ratio_N.clamp(self.incorrect_min, self.incorrect_max),
        )
        return PerToken(loss_N=-weight_N * terms.advantages_N * terms.logprobs_N, clipped_N=weight_N != ratio_N)
