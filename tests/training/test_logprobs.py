"""The one-pass head against autograd through log_softmax, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.logprobs import ChunkLoss, HeadInputs, chunk_tokens_for, one_pass_loss, token_logprobs
from training.losses.base import PerToken, TokenLoss, TokenTerms
from training.losses.cispo import Cispo
from training.losses.gspo import Gspo
from training.losses.ppo_clip import PpoClip

N, H, V = 23, 6, 17
GENERATOR = torch.Generator().manual_seed(5)
HIDDEN = torch.randn(N, H, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(V, H, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.randint(0, V, (N,), generator=GENERATOR)
TEMPERATURE = 0.5 + torch.rand(N, generator=GENERATOR, dtype=torch.float64)
OLD = -3 + torch.randn(N, generator=GENERATOR, dtype=torch.float64)
ADVANTAGES = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
WEIGHTS = torch.rand(N, generator=GENERATOR, dtype=torch.float64)
ROLLOUT = torch.arange(N) // 6


def chunk_loss(loss: TokenLoss) -> ChunkLoss:
    def part(logprobs: Tensor, at: slice) -> tuple[PerToken, Tensor]:
        terms = TokenTerms(
            logprobs_N=logprobs,
            base_logprobs_N=OLD[at],
            advantages_N=ADVANTAGES[at],
            rollout_index_N=ROLLOUT[at],
        )
        return loss(terms), WEIGHTS[at]

    return part


def inputs(hidden: Tensor, weight: Tensor, chunk: int = 5) -> HeadInputs:
    return HeadInputs(
        hidden_NH=hidden, weight_VH=weight, targets_N=TARGETS, temperature_N=TEMPERATURE, chunk_tokens=chunk
    )


def plain_logprobs(hidden: Tensor, weight: Tensor) -> Tensor:
    return ((hidden @ weight.t()) / TEMPERATURE[:, None]).log_softmax(-1).gather(1, TARGETS[:, None])[:, 0]


@pytest.mark.parametrize("loss", [Cispo(), PpoClip(), Gspo()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_value_and_gradients_equal_those_of_autograd(loss: TokenLoss, chunk: int) -> None:
    results = []
    for one_pass in (True, False):
        hidden, weight = HIDDEN.clone().requires_grad_(True), WEIGHT.clone().requires_grad_(True)
        if one_pass:
            total, _ = one_pass_loss(inputs(hidden, weight, chunk), chunk_loss(loss), token_local=loss.token_local)
        else:
            per_token, weights = chunk_loss(loss)(plain_logprobs(hidden, weight), slice(None))
            total = (per_token.loss_N * weights).sum()
        (3.0 * total).backward()  # the outer factor must reach both gradients
        results.append((total.detach(), hidden.grad, weight.grad))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_the_same() -> None:
    gradients = []
    for trained in (True, False):
        hidden, weight = HIDDEN.clone().requires_grad_(True), WEIGHT.clone().requires_grad_(trained)
        one_pass_loss(inputs(hidden, weight), chunk_loss(Cispo()), token_local=True)[0].backward()
        assert (weight.grad is not None) == trained
        gradients.append(hidden.grad)
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("loss", [PpoClip(), Gspo()], ids=lambda loss: loss.name)
def test_the_head_passes_gradcheck(loss: TokenLoss) -> None:
    def total(hidden: Tensor, weight: Tensor) -> Tensor:
        return one_pass_loss(inputs(hidden, weight), chunk_loss(loss), token_local=loss.token_local)[0]

    leaves = (HIDDEN.clone().requires_grad_(True), WEIGHT.clone().requires_grad_(True))
    assert torch.autograd.gradcheck(total, leaves, eps=1e-7, atol=1e-6)


def test_statistics_of_the_same_pass() -> None:
    _, stats = one_pass_loss(inputs(HIDDEN, WEIGHT), chunk_loss(Cispo()), token_local=True)
    logits = (HIDDEN @ WEIGHT.t()) / TEMPERATURE[:, None]
    softmax = logits.softmax(-1)
    assert_close(stats.logprobs_N, plain_logprobs(HIDDEN, WEIGHT))
    assert_close(token_logprobs(inputs(HIDDEN, WEIGHT)), plain_logprobs(HIDDEN, WEIGHT))
    assert_close(stats.entropy_N, -(softmax * softmax.log()).sum(-1))
    coefficient = -torch.exp(stats.logprobs_N - OLD).clamp(max=5) * ADVANTAGES * WEIGHTS
    assert_close(stats.coefficient_N, coefficient)
    onehot = torch.nn.functional.one_hot(TARGETS, V)
    assert_close(stats.logit_grad_norm_N, (onehot - softmax).norm(dim=-1) * coefficient.abs())


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation put into one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if isinstance(x, Tensor))])
        return out


def test_tokens_times_vocabulary_never_exists() -> None:
    hidden, weight = HIDDEN.clone().requires_grad_(True), WEIGHT.clone().requires_grad_(True)
    with LargestTensor() as largest:
        total, _ = one_pass_loss(inputs(hidden, weight, chunk=4), chunk_loss(Cispo()), token_local=True)
        total.backward()
    assert largest.numel == max(N * H, V * H)
    assert largest.numel < N * V


def test_a_token_with_an_impossible_neighbour_has_a_finite_entropy() -> None:
    hidden = torch.tensor([[1.0]], dtype=torch.float32)
    weight = torch.tensor([[0.0], [-1e38], [0.0]], dtype=torch.float32)
    head = HeadInputs(
        hidden_NH=hidden * 10,
        weight_VH=weight,
        targets_N=torch.tensor([0]),
        temperature_N=torch.ones(1),
        chunk_tokens=1,
    )

    def loss(logprobs: Tensor, at: slice) -> tuple[PerToken, Tensor]:
        return PerToken(loss_N=-logprobs, clipped_N=torch.zeros(1, dtype=torch.bool)), torch.ones(1)

    _, stats = one_pass_loss(head, loss, token_local=True)
    assert float(stats.entropy_N) == pytest.approx(0.693147, abs=1e-5)


def test_bfloat16_hidden_states_are_scored_in_float32() -> None:
    head = inputs(HIDDEN.bfloat16(), WEIGHT.float())
    assert token_logprobs(head).dtype is torch.float32


def test_a_chunk_has_at_least_one_token() -> None:
    assert [chunk_tokens_for(v, 1000, "cpu") for v in (10, 1000, 5000)] == [100, 1, 1]
    assert [chunk_tokens_for(v, None, "cpu") for v in (600, 49152, 151936)] == [1747, 128, 128]
    assert chunk_tokens_for(151936, None, "cuda") == 1766
