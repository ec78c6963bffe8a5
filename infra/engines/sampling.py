"""Drawing tokens: counter-based uniforms and the inverse CDF, vectorised over the rows of a step.

A token is a pure function of its row's logits, its sampling fields and (seed, rollout, call, token index): it does
not depend on the batch, the order of calls, or anything drawn before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infra.engines.base import EngineError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def call_key(seed: int, rollout_id: str, call_index: int) -> int:
    """The 64-bit key of one call's stream of uniforms."""
    name = f"{seed}\x1f{call_index}\x1f{rollout_id}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")


def uniforms(keys: npt.NDArray[np.uint64], token_indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """`u[B]` in [0, 1): SplitMix64 (Steele, Lea and Flood 2014) of each key at its own counter."""
    with np.errstate(over="ignore"):
        x = keys + (token_indices + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX[0]
        x = (x ^ (x >> np.uint64(27))) * _MIX[1]
        x = x ^ (x >> np.uint64(31))
    uniform: npt.NDArray[np.float64] = np.ldexp((x >> np.uint64(11)).astype(np.float64), -53)
    return uniform


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRows:
    """The sampling fields of B rows. `temperature[b]` is 1 where `greedy[b]`.

    `truncated[R]` are the rows with top-k or top-p on, `top_k[R]` (V where off) and `top_p[R]` theirs. The others
    never pass through the truncation: its rounding would make a row depend on whether a neighbour asked for it.
    """

    uniform: Tensor
    temperature: Tensor
    greedy: Tensor
    truncated: Tensor
    top_k: Tensor
    top_p: Tensor


def draw(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """`ids[B]` and `logprobs[B]` (nats) drawn from `logits[B, V]`, which are already divided by the temperature.

    The log-probabilities are of the distribution that was drawn from, after truncation.
    """
    _refuse_not_finite(logits)
    if len(rows.truncated):
        logits = logits.index_copy(0, rows.truncated, truncate(logits[rows.truncated], rows.top_k, rows.top_p))
    logprobs = torch.log_softmax(logits, dim=-1)
    cdf = torch.cumsum(logprobs.double().exp_(), dim=-1)
    total = cdf[:, -1]
    # u < 1, but u * total may round up to total, past the last token that has any probability
    target = torch.minimum(rows.uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    sampled = torch.searchsorted(cdf, target[:, None], right=True).squeeze(-1)
    ids = torch.where(rows.greedy, logits.argmax(dim=-1), sampled)
    return ids, logprobs.gather(-1, ids[:, None]).squeeze(-1)


def chosen_logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """`logprobs[N]` (nats) of given `ids[N]` under `logits[N, V]`: bitwise what `draw` gives for the same rows."""
    _refuse_not_finite(logits)
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, None]).squeeze(-1)


def _refuse_not_finite(logits: Tensor) -> None:
    if not bool(torch.isfinite(logits).all()):
        raise EngineError("the policy gives logits that are not finite; its weights are broken, load others")


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """`logits[B, V]` with -inf outside the `top_k[B]` likeliest, then outside the smallest set of mass `top_p[B]`.

    The mass is counted after top-k has been renormalised, as transformers and vLLM do.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(ranks[None, :] >= top_k[:, None], -torch.inf)
    mass = torch.softmax(ordered, dim=-1)
    before = torch.cumsum(mass, dim=-1) - mass
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (ranks[None, :] > 0), -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, order, ordered)
