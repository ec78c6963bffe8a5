"""One forward pass over tokens of many sessions, packed into rows, each attending to its own session's cache.

A transformers model runs as it is, on `input_ids[1, M]`; only its attention function is ours. On CPU in float32 a
row's bits do not depend on its neighbours: M is one of a few row counts that the matrix library treats alike
(checked when the model is loaded), norms and activations work row by row, and attention is `attention.py`.

So the hidden state of a token is a pure function of the weights and of the ids up to it: it does not matter in what
chunks a prompt was read, which tokens were sampled and which read back, or whether a cache was dropped on the way.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AttentionInterface

from infra.engines.attention import DIM_STEP, Floats, attend_rows, store_rows
from infra.engines.base import EngineError

ATTENTION = "longbreath_packed"
# What some models ask of an attention function and ours does not do.
_UNSUPPORTED = ("softcap", "s_aux", "attention_sinks", "position_bias")


@dataclass(frozen=True, slots=True)
class Piece:
    """`len(ids)` consecutive tokens of one slot; the first stands at `start` in its session."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        """The session's length once this piece is in the cache."""
        return self.start + len(self.ids)


class KVCache:
    """Keys and values of `num_slots` sessions and one scrap slot for padding rows, allocated at first use.

    A layer's keys are [num_slots + 1, kv_heads, head_dim, max_context], its values [num_slots + 1, kv_heads,
    max_context, head_dim], float32; see `attention.py`. Pages never written cost no memory: a slot takes what its
    session's length asks for, in steps of 1,024 tokens.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self.num_slots = num_slots
        self.positions = max_context
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's (keys, values); `key` and `value` [M, kv_heads, head_dim] say their shape."""
        if index not in self._layers:
            slots, positions = self.num_slots + 1, self.positions
            _, heads, dim = key.shape
            self._layers[index] = (
                _unwritten_zeros(slots, heads, dim, positions),
                _unwritten_zeros(slots, heads, positions, value.shape[2]),
            )
        return self._layers[index]

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions `start:end` of slot `source` to slot `target`, in every layer."""
        for keys, values in self._layers.values():
            keys[target, :, :, start:end] = keys[source, :, :, start:end]
            values[target, :, start:end] = values[source, :, start:end]


def _unwritten_zeros(*shape: int) -> Tensor:
    """Zeros that the kernel gives page by page. torch.zeros writes every page, numpy.zeros asks for huge ones."""
    pages = mmap.mmap(-1, 4 * math.prod(shape))
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float32).view(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Pieces laid out in M rows: row m is position `positions[m]` of slot `slots[m]` of `cache`.

    Rows `bounds[i]:bounds[i + 1]` attend in one thread: the first in the caller's, the others in `helpers`.
    """

    input_ids: Tensor
    position_ids: Tensor
    slots: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    cache: KVCache
    bounds: Sequence[int]
    helpers: Executor


def pack(pieces: Sequence[Piece], num_rows: int, cache: KVCache, *, num_threads: int, helpers: Executor) -> Packing:
    """Lay `pieces` out in order, padded with scrap rows to `num_rows`, for `num_threads` attending threads."""
    ids, positions, slots = (np.zeros(num_rows, dtype=np.int64) for _ in range(3))
    slots.fill(cache.num_slots)
    row = 0
    for piece in pieces:
        rows = slice(row, row + len(piece.ids))
        ids[rows], slots[rows], positions[rows] = piece.ids, piece.slot, range(piece.start, piece.end)
        row += len(piece.ids)
    return Packing(
        input_ids=torch.from_numpy(ids)[None],
        position_ids=torch.from_numpy(positions)[None],
        slots=slots,
        positions=positions,
        cache=cache,
        bounds=_even_bounds(positions + 1, num_threads),
        helpers=helpers,
    )


def _even_bounds(work: npt.NDArray[np.int64], num_parts: int) -> list[int]:
    """Cuts `work[M]` into parts of about equal sums: `num_parts + 1` bounds from 0 to M."""
    done = np.cumsum(work)
    inner = np.searchsorted(done, done[-1] * np.arange(1, num_parts) / num_parts) + 1
    return [0, *inner.tolist(), len(work)]


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: `query[1, H, M, D]` -> `[1, M, H, D]`.

    Writes `key` and `value` [1, kv_heads, M, D] to the cache first, so that a row sees itself.
    """
    packing: Packing = kwargs["packing"]
    _refuse_unsupported(key.shape[3], packing.cache.positions, kwargs)
    rows, rows_k, rows_v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    keys, values = (x.numpy() for x in packing.cache.layer(module.layer_idx, rows_k, rows_v))
    store_rows(rows_k.numpy(), rows_v.numpy(), packing.slots, packing.positions, keys, values)
    num_rows, heads, dim = rows.shape
    grouped = rows.view(num_rows, rows_k.shape[1], heads // rows_k.shape[1], dim)
    output = grouped.new_empty(*grouped.shape[:3], value.shape[3])
    _attend(packing, grouped.numpy(), keys, values, np.float32(kwargs["scaling"]), output.numpy())
    return output.view(1, num_rows, heads, value.shape[3]), None


def _attend(packing: Packing, query: Floats, keys: Floats, values: Floats, scaling: np.float32, output: Floats) -> None:
    def part(first: int, last: int) -> None:
        rows = slice(first, last)
        where = packing.slots[rows], packing.positions[rows]
        attend_rows(query[rows], *where, keys, values, scaling, output[rows])

    (first, last), *others = pairwise(packing.bounds)
    pending = [packing.helpers.submit(part, *bounds) for bounds in others]
    part(first, last)
    for future in pending:
        future.result()


def _refuse_unsupported(head_dim: int, positions: int, options: dict[str, Any]) -> None:
    asked = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if asked:
        raise EngineError(f"this model's attention needs {asked}; the local engine has none, serve it with vLLM")
    if head_dim % DIM_STEP:
        raise EngineError(f"this model's heads have {head_dim} dims; the local engine wants a multiple of {DIM_STEP}")
    window = options.get("sliding_window")
    if window is not None and window < positions:
        raise EngineError(f"this model attends to {window} tokens back; want max_context <= {window}, not {positions}")


AttentionInterface.register(ATTENTION, packed_attention)
