"""Packing: samples of any length in one row without padding, each attending to itself only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.samples import Sample


class PackingError(ValueError):
    """Samples that cannot be packed. The message says which and how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRow:
    """Several samples end to end. T tokens in all, N of them trained; log-probabilities in nats.

    `token_ids_1T`, `position_ids_1T` (restarting at 0 with each sample), `lengths`: tokens of each sample.
    `predictor_N`: where in the row the hidden state stands that predicts trained token n, which is `targets_N`.
    `sample_index_N`: which of `samples` it belongs to; `rollout_index_N` numbers the rollouts of the row.
    """

    samples: tuple[Sample, ...]
    lengths: tuple[int, ...]
    token_ids_1T: Tensor
    position_ids_1T: Tensor
    predictor_N: Tensor
    targets_N: Tensor
    behaviour_logprobs_N: Tensor
    proximal_logprobs_N: Tensor | None
    advantages_N: Tensor
    temperature_N: Tensor
    sample_index_N: Tensor
    rollout_index_N: Tensor


def plan_rows(samples: Sequence[Sample], token_budget: int, *, whole_rollouts: bool = False) -> list[list[int]]:
    """Indices of the samples of each row: first fit over decreasing length, at most `token_budget` tokens a row.

    A unit longer than the budget gets a row to itself. The unit is a sample, or with `whole_rollouts` all samples
    of a rollout, for losses that compare its tokens. Deterministic: a function of lengths and order.
    """
    if token_budget < 1:
        raise PackingError(f"token_budget is {token_budget}; want at least 1 token")
    units: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.rollout_id if whole_rollouts else str(index), []).append(index)
    sized = sorted(
        ((sum(len(samples[i].token_ids) for i in unit), unit) for unit in units.values()),
        key=lambda pair: (-pair[0], pair[1]),
    )
    rows: list[list[int]] = []
    room: list[int] = []
    for size, unit in sized:
        fit = next((r for r, left in enumerate(room) if left >= size), None)
        if fit is None:
            rows.append(list(unit))
            room.append(token_budget - size)
        else:
            rows[fit].extend(unit)
            room[fit] -= size
    return rows


def pack(samples: Sequence[Sample], device: torch.device) -> PackedRow:
    """One row from `samples`, in order. Raises PackingError for none, or if only some have proximal values."""
    if not samples:
        raise PackingError("got no samples to pack; want at least one")
    lengths = tuple(len(s.token_ids) for s in samples)
    mask = np.concatenate([s.loss_mask for s in samples])
    trained = np.flatnonzero(mask)
    rollouts = {r: n for n, r in enumerate(dict.fromkeys(s.rollout_id for s in samples))}
    token_ids = np.concatenate([s.token_ids for s in samples]).astype(np.int64)

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    def per_token(values: Sequence[float | int], dtype: type) -> Tensor:
        return on_device(np.repeat(np.asarray(values, dtype=dtype), lengths)[trained])

    return PackedRow(
        samples=tuple(samples),
        lengths=lengths,
        token_ids_1T=on_device(token_ids[None]),
        position_ids_1T=on_device(np.concatenate([np.arange(n) for n in lengths])[None]),
        predictor_N=on_device(trained - 1),
        targets_N=on_device(token_ids[trained]),
        behaviour_logprobs_N=on_device(np.concatenate([s.behaviour_logprobs for s in samples])[trained]),
        proximal_logprobs_N=_proximal(samples, trained, device),
        advantages_N=on_device(np.concatenate([s.advantages for s in samples])[trained]),
        temperature_N=per_token([s.temperature for s in samples], np.float32),
        sample_index_N=per_token(range(len(samples)), np.int64),
        rollout_index_N=per_token([rollouts[s.rollout_id] for s in samples], np.int64),
    )


def _proximal(samples: Sequence[Sample], trained: np.ndarray, device: torch.device) -> Tensor | None:
    present = [s.proximal_logprobs for s in samples if s.proximal_logprobs is not None]
    if not present:
        return None
    if len(present) < len(samples):
        raise PackingError(f"{len(present)} of {len(samples)} samples have proximal_logprobs; want all or none")
    return torch.from_numpy(np.concatenate(present)[trained]).to(device)
