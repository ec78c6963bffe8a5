"""What every loss takes and gives: per-token tensors in, per-token losses out; the normaliser is not its business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class LossConfigError(ValueError):
    """A loss that contradicts itself or the run. The message says what was got and how to mend it."""


class LossWarning(UserWarning):
    """A legal setting that is probably a mistake (a convention of another code base)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """The N trainable tokens of some microbatch, flat. All tensors are `[N]`, log-probabilities in nats.

    `logprobs_N` is of the policy in training and carries the gradient; `base_logprobs_N` is of the policy that the
    ratio is against (behaviour or proximal); `rollout_index_N` (int64, 0..R-1) says which rollout a token is of;
    `reference_logprobs_N` is of the start policy where a KL term needs it.
    """

    logprobs_N: Tensor
    base_logprobs_N: Tensor
    advantages_N: Tensor
    rollout_index_N: Tensor
    reference_logprobs_N: Tensor | None = None

    @property
    def ratio_N(self) -> Tensor:
        """`r = pi_theta / pi_base` per token, with gradient."""
        return torch.exp(self.logprobs_N - self.base_logprobs_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class PerToken:
    """`loss_N`: to be minimised, before weighting. `clipped_N` (bool): where the clip, cap or mask took effect."""

    loss_N: Tensor
    clipped_N: Tensor


class TokenLoss(Protocol):
    """A loss: a frozen, validated config that is called like the pure function it stands for.

    `token_local`: the loss of a token depends on that token's log-probability only, so it can be formed chunk by
    chunk. `needs_reference`: whether the start policy is read.
    """

    @property
    def name(self) -> str: ...

    @property
    def token_local(self) -> bool: ...

    @property
    def needs_reference(self) -> bool: ...

    def __call__(self, terms: TokenTerms) -> PerToken: ...


def positive(where: str, value: float) -> None:
    """Raise LossConfigError unless `value` is a positive number (NaN is refused)."""
    if not value > 0:
        raise LossConfigError(f"{where} is {value}; want a positive number")
