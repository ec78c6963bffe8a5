"""The smallest policy that shows what a loss does to a rare token: one softmax choice, many batches, many seeds.

At some point of its work a model chooses its next token among V; one of them is 'wait'. A batch draws it N times in
groups, rewards each draw with 1 or 0, and takes several updates on the batch with a loss of `training.losses`. All
seeds run side by side as rows of one tensor and never mix. What is not modelled: other tokens, other states, noise in
the log-probabilities. It isolates the clip; it says nothing about how often a real model meets such a choice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from training.advantages import centred
from training.losses.base import TokenLoss, TokenTerms

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The world: token i starts at probability `start[i]` and is rewarded with chance `reward_chance[i]`.

    Token 0 is the one that is watched. `draws` per batch, compared in groups of `group_size`; `updates` on each whole
    batch; a batch is trained on `staleness` batches after it was drawn. A seed is done when token 0 reaches `target`.
    """

    name: str
    start: tuple[float, ...]
    reward_chance: tuple[float, ...]
    batches: int
    draws: int = 512
    group_size: int = 8
    updates: int = 16
    staleness: int = 0
    target: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What happened, per seed S and batch B.

    `probability_SB`: of token 0 after each batch. `first_seen_S`: the first batch that holds token 0; `reached_S`: the
    first after which it is at the target; both -1 for never. `gradient_share_SU`: token 0's share of the summed
    logit-gradient norms at each update of the first batch that held it.
    """

    probability_SB: FloatArray
    first_seen_S: IntArray
    reached_S: IntArray
    gradient_share_SU: FloatArray

    @property
    def batches_to_target_S(self) -> FloatArray:
        """Batches from the one that first held token 0 to the target, that one included; infinite for never."""
        return np.where(self.reached_S >= 0, self.reached_S - self.first_seen_S + 1.0, np.inf)


@dataclass(frozen=True, slots=True)
class _Batch:
    tokens_SN: Tensor
    logprobs_SN: Tensor
    advantages_SN: Tensor


def run(choice: Choice, loss: TokenLoss, *, learning_rate: float, seeds: int, first_seed: int = 0) -> Run:
    """Train `seeds` policies with plain gradient descent on their logits, token mean, population-std advantages."""
    rngs = [np.random.default_rng((first_seed + s, choice.draws)) for s in range(seeds)]
    logits_SV = torch.log(torch.tensor(choice.start, dtype=torch.float64)).repeat(seeds, 1)
    probability_SB = np.zeros((seeds, choice.batches))
    share_SU = np.full((seeds, choice.updates), np.nan)
    first_seen_S, reached_S = np.full(seeds, -1), np.full(seeds, -1)
    waiting: deque[_Batch] = deque()
    for number in range(choice.batches):
        waiting.append(_draw(choice, logits_SV, rngs))
        if len(waiting) > choice.staleness:
            batch = waiting.popleft()
            new_S = (first_seen_S < 0) & (batch.tokens_SN == 0).any(1).numpy()
            first_seen_S[new_S] = number
            for update in range(choice.updates if batch.advantages_SN.any() else 0):
                logits_SV, share_S = _update(logits_SV, batch, loss, learning_rate)
                share_SU[new_S, update] = share_S[new_S]
        probability_SB[:, number] = torch.softmax(logits_SV, 1)[:, 0].numpy()
        reached_S[(reached_S < 0) & (probability_SB[:, number] >= choice.target)] = number
        if choice.target < 1 and (reached_S >= 0).all():
            probability_SB[:, number + 1 :] = probability_SB[:, number : number + 1]
            break
    return Run(
        probability_SB=probability_SB, first_seen_S=first_seen_S, reached_S=reached_S, gradient_share_SU=share_SU
    )


def _draw(choice: Choice, logits_SV: Tensor, rngs: list[np.random.Generator]) -> _Batch:
    logprobs_SV = torch.log_softmax(logits_SV, 1)
    cumulative_SV = logprobs_SV.exp().cumsum(1).numpy()
    uniform_SN = np.stack([rng.random(choice.draws) for rng in rngs])
    tokens_SN = np.stack(
        [np.searchsorted(row[:-1], draws, side="right") for row, draws in zip(cumulative_SV, uniform_SN, strict=True)]
    )
    luck_SN = np.stack([rng.random(choice.draws) for rng in rngs])
    rewards_SN = (luck_SN < np.asarray(choice.reward_chance)[tokens_SN]).astype(np.float64)
    tokens = torch.from_numpy(tokens_SN)
    return _Batch(
        tokens, logprobs_SV.gather(1, tokens), torch.from_numpy(group_advantages(rewards_SN, choice.group_size))
    )


def group_advantages(rewards_SN: FloatArray, group_size: int) -> FloatArray:
    """`[S, N]` group-mean advantages over the population std; 0 in groups that agree."""
    grouped = rewards_SN.reshape(len(rewards_SN), -1, group_size)
    scale = grouped.std(-1, keepdims=True)
    advantages: FloatArray = np.divide(
        centred(grouped, "group_mean"), scale, out=np.zeros_like(grouped), where=scale > 0
    )
    return advantages.reshape(rewards_SN.shape)


def _update(logits_SV: Tensor, batch: _Batch, loss: TokenLoss, learning_rate: float) -> tuple[Tensor, FloatArray]:
    """One gradient step of every seed, and token 0's share of the gradient."""
    seeds, draws = batch.tokens_SN.shape
    logprobs_SV = torch.log_softmax(logits_SV, 1)
    leaf_SN = logprobs_SV.gather(1, batch.tokens_SN).requires_grad_(True)
    terms = TokenTerms(
        logprobs_N=leaf_SN.reshape(-1),
        base_logprobs_N=batch.logprobs_SN.reshape(-1),
        advantages_N=batch.advantages_SN.reshape(-1),
        rollout_index_N=torch.arange(seeds * draws),
    )
    kept_S1 = (batch.advantages_SN != 0).sum(1, keepdim=True).clamp(min=1)  # groups that agree were dropped
    total = (loss(terms).loss_N.reshape(seeds, draws) / kept_S1).sum()
    (coefficient_SN,) = torch.autograd.grad(total, leaf_SN)
    probs_SV = logprobs_SV.exp()
    sums_SV = torch.zeros_like(logits_SV).scatter_add_(1, batch.tokens_SN, coefficient_SN)
    gradient_SV = sums_SV - probs_SV * coefficient_SN.sum(1, keepdim=True)
    return logits_SV - learning_rate * gradient_SV, _share(batch.tokens_SN, coefficient_SN, probs_SV)


def _share(tokens_SN: Tensor, coefficient_SN: Tensor, probs_SV: Tensor) -> FloatArray:
    """Token 0's share of `sum_n |c_n| * |onehot - softmax|`, `[S]`."""
    picked_SN = probs_SV.gather(1, tokens_SN)
    norm_SN = coefficient_SN.abs() * (1 - 2 * picked_SN + probs_SV.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    watched_S = (norm_SN * (tokens_SN == 0)).sum(1)
    share: FloatArray = (watched_S / norm_SN.sum(1).clamp(min=1e-300)).numpy()
    return share
