"""The head and the loss in one pass: log-probabilities, statistics and gradients, a chunk of tokens at a time.

For every loss whose derivative depends on log-probabilities only, `d(loss)/d(logits) = c * (onehot - softmax)`
with `c = d(loss)/d(logp)` is known as soon as a chunk's logits are. So `d(hidden)` and `d(weight)` are formed in
the forward pass, and neither the `[tokens, vocab]` matrix nor a second computation of it ever exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.losses.base import PerToken


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadInputs:
    """What the head needs of N trained tokens: `hidden_NH` before the head, `weight_VH` (tied or not),
    `targets_N`, `temperature_N` as sampled, and how many tokens are scored at a time."""

    hidden_NH: Tensor
    weight_VH: Tensor
    targets_N: Tensor
    temperature_N: Tensor
    chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Per trained token, detached, in the head's precision: `logprobs_N` (nats), `entropy_N` (nats),
    `coefficient_N` = d(loss)/d(logp) with weights, `logit_grad_norm_N` = the 2-norm of d(loss)/d(logits over
    temperature), `clipped_N` (bool)."""

    logprobs_N: Tensor
    entropy_N: Tensor
    coefficient_N: Tensor
    logit_grad_norm_N: Tensor
    clipped_N: Tensor


# logprobs[n] of the tokens in a slice -> weighted token losses; the slice says which tokens of the row they are.
ChunkLoss = Callable[[Tensor, slice], tuple[PerToken, Tensor]]


# A million logits stay in a processor's cache; a GPU wants large products, and a gibibyte is small to it.
CHUNK_ELEMENTS = {"cpu": 2**20, "cuda": 2**28}
MIN_CHUNK_TOKENS = 128


def chunk_tokens_for(vocab_size: int, chunk_elements: int | None, device_type: str) -> int:
    """Tokens a chunk, so that a chunk's logits have about `chunk_elements` numbers.

    None: what suits the device, but no fewer than 128 tokens: each chunk goes through the head's weight twice and its
    gradient once, which costs more than the products where a large vocabulary leaves few tokens.
    """
    if chunk_elements is None:
        return max(MIN_CHUNK_TOKENS, CHUNK_ELEMENTS.get(device_type, CHUNK_ELEMENTS["cpu"]) // vocab_size)
    return max(1, chunk_elements // vocab_size)


def score_dtype(hidden: Tensor) -> torch.dtype:
    """The head runs in float32 whatever the body's precision (float64 stays): M1's LM-head rule."""
    return torch.promote_types(hidden.dtype, torch.float32)


def _chunk_logits(hidden_cH: Tensor, weight_VH: Tensor, temperature_c: Tensor) -> Tensor:
    return (hidden_cH @ weight_VH.t()).div_(temperature_c[:, None])


def token_logprobs(inputs: HeadInputs) -> Tensor:
    """`[N]` log-probabilities in nats without gradient, chunk by chunk."""
    dtype = score_dtype(inputs.hidden_NH)
    with torch.no_grad(), torch.autocast(inputs.hidden_NH.device.type, enabled=False):
        weight_VH = inputs.weight_VH.to(dtype)
        pieces = []
        for start in range(0, len(inputs.targets_N), inputs.chunk_tokens):
            at = slice(start, start + inputs.chunk_tokens)
            logits_cV = _chunk_logits(inputs.hidden_NH[at].to(dtype), weight_VH, inputs.temperature_N[at].to(dtype))
            picked_c = logits_cV.gather(1, inputs.targets_N[at, None]).squeeze(1)
            pieces.append(picked_c - logits_cV.logsumexp(1))
        return torch.cat(pieces) if pieces else inputs.hidden_NH.new_zeros(0, dtype=dtype)


def _coefficients(loss: ChunkLoss, logprobs_c: Tensor, at: slice) -> tuple[Tensor, Tensor, Tensor]:
    """(weighted loss sum, d(loss)/d(logp), clipped) of a chunk, by autograd on the small vector only."""
    with torch.enable_grad():
        leaf_c = logprobs_c.detach().requires_grad_(True)
        per_token, weights_c = loss(leaf_c, at)
        total = (per_token.loss_N * weights_c).sum()
        (coefficient_c,) = torch.autograd.grad(total, leaf_c)
    return total.detach(), coefficient_c, per_token.clipped_N


class _OnePassHead(torch.autograd.Function):
    """loss(hidden, weight) with both gradients formed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, inputs: HeadInputs, loss: ChunkLoss, token_local: bool
    ) -> tuple[Tensor, ...]:
        dtype = score_dtype(hidden_NH)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            sweep = _Sweep(inputs, weight_VH.detach().to(dtype), trained=ctx.needs_input_grad[1])
            if token_local:
                sweep.run(loss)
            else:  # the coefficients need all tokens of a rollout first
                total, coefficient_N, clipped_N = _coefficients(loss, token_logprobs(inputs), slice(None))
                sweep.run_with(coefficient_N, clipped_N)
                sweep.loss = total
        d_weight_VH = None if sweep.d_weight_VH is None else sweep.d_weight_VH.to(weight_VH.dtype)
        ctx.save_for_backward(sweep.d_hidden_NH, d_weight_VH)
        stats = (sweep.logprobs_N, sweep.entropy_N, sweep.coefficient_N, sweep.grad_norm_N, sweep.clipped_N)
        ctx.mark_non_differentiable(*stats)
        return sweep.loss, *stats

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_NH, d_weight_VH = (None if d is None else d * d_loss.to(d.dtype) for d in ctx.saved_tensors)
        return d_hidden_NH, d_weight_VH, None, None, None


class _Sweep:
    """One pass over the chunks: three matrix products each (logits, d(hidden), and d(weight) if it is `trained`)."""

    def __init__(self, inputs: HeadInputs, weight_VH: Tensor, *, trained: bool) -> None:
        hidden_NH, dtype, count = inputs.hidden_NH.detach(), weight_VH.dtype, len(inputs.targets_N)
        self.hidden_NH, self.weight_VH, self.inputs, self.dtype = hidden_NH, weight_VH, inputs, dtype
        self.loss = hidden_NH.new_zeros((), dtype=dtype)
        self.d_hidden_NH = torch.empty_like(hidden_NH)
        self.d_weight_VH = torch.zeros_like(weight_VH) if trained else None
        self.logprobs_N, self.entropy_N, self.coefficient_N, self.grad_norm_N = (
            hidden_NH.new_empty(count, dtype=dtype) for _ in range(4)
        )
        self.clipped_N = torch.zeros(count, dtype=torch.bool, device=hidden_NH.device)

    def run(self, loss: ChunkLoss) -> None:
        """The loss of each chunk decides its coefficients."""
        for start in range(0, len(self.inputs.targets_N), self.inputs.chunk_tokens):
            at = slice(start, start + self.inputs.chunk_tokens)
            softmax_cV = self._softmax(at)
            total, coefficient_c, clipped_c = _coefficients(loss, self.logprobs_N[at], at)
            self.loss += total
            self._gradients(at, softmax_cV, coefficient_c, clipped_c)

    def run_with(self, coefficient_N: Tensor, clipped_N: Tensor) -> None:
        """The coefficients are known."""
        for start in range(0, len(self.inputs.targets_N), self.inputs.chunk_tokens):
            at = slice(start, start + self.inputs.chunk_tokens)
            self._gradients(at, self._softmax(at), coefficient_N[at], clipped_N[at])

    def _softmax(self, at: slice) -> Tensor:
        logits_cV = _chunk_logits(
            self.hidden_NH[at].to(self.dtype), self.weight_VH, self.inputs.temperature_N[at].to(self.dtype)
        )
        normaliser_c1 = logits_cV.logsumexp(1, keepdim=True)
        logits_cV.sub_(normaliser_c1)
        self.logprobs_N[at] = logits_cV.gather(1, self.inputs.targets_N[at, None]).squeeze(1)
        softmax_cV = logits_cV.exp()
        # a logit of -inf has probability 0 and adds nothing to the entropy: 0 * -inf must not become NaN
        self.entropy_N[at] = -torch.einsum("cv,cv->c", softmax_cV, logits_cV.clamp_(min=-1e30))
        return softmax_cV

    def _gradients(self, at: slice, softmax_cV: Tensor, coefficient_c: Tensor, clipped_c: Tensor) -> None:
        targets_c1 = self.inputs.targets_N[at, None]
        self.coefficient_N[at], self.clipped_N[at] = coefficient_c, clipped_c
        softmax_cV.scatter_add_(1, targets_c1, torch.full_like(targets_c1, -1, dtype=self.dtype))
        self.grad_norm_N[at] = torch.linalg.vector_norm(softmax_cV, dim=1) * coefficient_c.abs()
        d_logits_cV = softmax_cV.mul_((-coefficient_c / self.inputs.temperature_N[at].to(self.dtype))[:, None])
        self.d_hidden_NH[at] = (d_logits_cV @ self.weight_VH).to(self.d_hidden_NH.dtype)
        if self.d_weight_VH is not None:
            self.d_weight_VH.addmm_(d_logits_cV.t(), self.hidden_NH[at].to(self.dtype))


def one_pass_loss(inputs: HeadInputs, loss: ChunkLoss, *, token_local: bool) -> tuple[Tensor, TokenStats]:
    """The weighted loss (a scalar whose backward feeds hidden and weight) and the statistics of its tokens.

    `loss(logprobs_c, at)` gives the token losses of a slice and their weights. With `token_local` False the
    log-probabilities of all N tokens are computed first, which costs one more product.
    """
    total, logprobs_N, entropy_N, coefficient_N, norm_N, clipped_N = _OnePassHead.apply(  # type: ignore[no-untyped-call]
        inputs.hidden_NH, inputs.weight_VH, inputs, loss, token_local
    )
    return total, TokenStats(
        logprobs_N=logprobs_N,
        entropy_N=entropy_N,
        coefficient_N=coefficient_N,
        logit_grad_norm_N=norm_N,
        clipped_N=clipped_N,
    )
