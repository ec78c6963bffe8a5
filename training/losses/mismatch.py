"""Corrections for an engine that samples from slightly other probabilities than the trainer computes.

They act on `q_t = pi_proximal(o_t) / pi_behaviour(o_t)` only, as a weight without gradient beside the loss; the
loss's own ratio must then be against the proximal policy, or the same ratio would be corrected twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from training.losses.base import LossConfigError, positive


class Mismatch(Protocol):
    """A weight per token from `q_N = pi_proximal / pi_behaviour`, `[N]`, no gradient."""

    @property
    def name(self) -> str: ...

    def __call__(self, q_N: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCorrection:
    """Weight 1: the engine and the trainer are taken to agree."""

    name = "none"

    def __call__(self, q_N: Tensor) -> Tensor:
        return torch.ones_like(q_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tis:
    """Truncated importance sampling: `min(q, cap)`. Source: Ionides 2008; cap 2 is the usual value for LLMs."""

    cap: float = 2.0

    name = "tis"

    def __post_init__(self) -> None:
        positive("tis.cap", self.cap)

    def __call__(self, q_N: Tensor) -> Tensor:
        return q_N.clamp(max=self.cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mis:
    """Masked importance sampling: `q` where `q <= cap`, else the token is rejected (weight 0)."""

    cap: float = 2.0

    name = "mis"

    def __post_init__(self) -> None:
        positive("mis.cap", self.cap)

    def __call__(self, q_N: Tensor) -> Tensor:
        return q_N.masked_fill(q_N > self.cap, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcePop:
    """`q` inside `[low, high]`, else 0: tokens on which the two disagree in either direction do not train."""

    low: float = 0.5
    high: float = 5.0

    name = "icepop"

    def __post_init__(self) -> None:
        if not 0 <= self.low < 1 < self.high:
            raise LossConfigError(f"icepop keeps [{self.low}, {self.high}]; want 0 <= low < 1 < high")

    def __call__(self, q_N: Tensor) -> Tensor:
        return q_N.masked_fill((q_N < self.low) | (q_N > self.high), 0.0)
