"""One forward pass over tokens of many sessions, packed into rows, each attending to its own session's cache.

A transformers model runs as it is, on `input_ids[1, M]`; only its attention function is ours. What makes a row
independent of its neighbours, bit for bit, on CPU in float32:

- M is one of a few row counts that the matrix library treats alike (checked when the model is loaded);
- attention is one call a session (or a run of them) over the cache padded to a multiple of 64 keys, with at least
  4 query rows and a multiple of 4: padded keys weigh exactly 0 and both rules keep the order of every sum.

So the hidden state of a token is a pure function of the weights and of the ids up to it: it does not matter in what
chunks a prompt was read, which tokens were sampled and which read back, or whether a cache was dropped on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

ATTENTION = "longbreath_packed"
KEY_BLOCK = 64
QUERY_BLOCK = 4
# Reading one more padded key of one row costs about 1/90 of a separate attention call (measured, tiny model).
PADDED_KEYS_PER_CALL = 90


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


@dataclass(frozen=True, slots=True, eq=False)
class _Span:
    """Rows `first:last` attend to slots `slots` over `keys` cached positions; `mask` is [B, 1, Q, keys]."""

    first: int
    last: int
    slots: slice
    keys: int
    mask: Tensor


class KVCache:
    """Keys and values of `num_slots` sessions and one scrap slot for padding rows, allocated at first use.

    Each layer's tensors are [num_slots + 1, kv_heads, max_context, head_dim]. Pages never written cost no memory
    on CPU.
    """

    def __init__(self, num_slots: int, max_context: int) -> None:
        self.num_slots = num_slots
        self.positions = _round_up(max_context, KEY_BLOCK)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's (keys, values); `key` and `value` [1, kv_heads, M, head_dim] say their shape and type."""
        if index not in self._layers:
            self._layers[index] = (self._allocate(key), self._allocate(value))
        return self._layers[index]

    def _allocate(self, like: Tensor) -> Tensor:
        # zeros, not empty: 0 weight times an uninitialised NaN would be NaN
        return like.new_zeros(self.num_slots + 1, like.shape[1], self.positions, like.shape[3])

    def copy_prefix(self, source: int, target: int, start: int, end: int) -> None:
        """Copy positions `start:end` of slot `source` to slot `target`, in every layer."""
        for keys, values in self._layers.values():
            keys[target, :, start:end] = keys[source, :, start:end]
            values[target, :, start:end] = values[source, :, start:end]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Pieces laid out in `num_rows` rows: their inputs, where their keys go, and the attention calls to make."""

    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    spans: tuple[_Span, ...]
    cache: KVCache


def pack(pieces: Sequence[Piece], num_rows: int, cache: KVCache, device: torch.device) -> Packing:
    """Lay `pieces` out in order, padded with scrap rows to `num_rows`.

    Single tokens should come first and in order of slot: neighbours then share an attention call.
    """
    ids = [i for piece in pieces for i in piece.ids]
    positions = [t for piece in pieces for t in range(piece.start, piece.end)]
    slots = [piece.slot for piece in pieces for _ in piece.ids]
    padding = num_rows - len(ids)
    return Packing(
        input_ids=torch.tensor([ids + [0] * padding], device=device),
        positions=torch.tensor([positions + [0] * padding], device=device),
        slots=torch.tensor(slots + [cache.num_slots] * padding, device=device),
        spans=tuple(_spans(pieces, device)),
        cache=cache,
    )


def _spans(pieces: Sequence[Piece], device: torch.device) -> list[_Span]:
    spans, row, index = [], 0, 0
    while index < len(pieces):
        count = _run_length(pieces, index)
        run = pieces[index : index + count]
        rows = sum(len(piece.ids) for piece in run)
        spans.append(_span(run, row, rows, device))
        row, index = row + rows, index + count
    return spans


def _run_length(pieces: Sequence[Piece], index: int) -> int:
    """How many single-token pieces from `index` on share one call: neighbouring slots of about one length."""
    longest, padded, count = _padded_keys(pieces[index]), 0, 1
    while index + count < len(pieces):
        last, piece = pieces[index + count - 1], pieces[index + count]
        if len(last.ids) != 1 or len(piece.ids) != 1 or piece.slot != last.slot + 1:
            break
        keys = _padded_keys(piece)
        padded += max(keys - longest, 0) * count + max(longest - keys, 0)
        longest = max(longest, keys)
        if padded > PADDED_KEYS_PER_CALL * count:
            break
        count += 1
    return count


def _span(run: Sequence[Piece], row: int, rows: int, device: torch.device) -> _Span:
    keys = max(_padded_keys(piece) for piece in run)
    ends = torch.tensor([t + 1 for piece in run for t in range(piece.start, piece.end)], device=device)
    hidden = torch.arange(keys, device=device)[None, :] >= ends[:, None]
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
    shaped = mask[None, None] if len(run) == 1 else mask[:, None, None]
    return _Span(row, row + rows, slice(run[0].slot, run[-1].slot + 1), keys, shaped)


def _padded_keys(piece: Piece) -> int:
    return _round_up(piece.end, KEY_BLOCK)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def packed_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The attention function that transformers calls: `query[1, H, M, D]` -> `[1, M, H, D]`.

    Writes `key` and `value` [1, kv_heads, M, D] to the cache first, so that a row sees itself.
    """
    packing: Packing = kwargs["packing"]
    keys, values = packing.cache.layer(module.layer_idx, key, value)
    positions = packing.positions[0]
    keys[packing.slots, :, positions] = key[0].transpose(0, 1)
    values[packing.slots, :, positions] = value[0].transpose(0, 1)
    heads, kv_heads = query.shape[1], key.shape[1]
    grouped = query[0].transpose(0, 1).unflatten(1, (kv_heads, heads // kv_heads))  # [M, kv_heads, G, D]
    output = torch.zeros(*grouped.shape[:3], value.shape[-1], dtype=query.dtype, device=query.device)
    for span in packing.spans:
        cached = keys[span.slots, :, : span.keys], values[span.slots, :, : span.keys]
        output[span.first : span.last] = _attend(grouped[span.first : span.last], *cached, span.mask, kwargs["scaling"])
    return output.flatten(1, 2).unsqueeze(0), None


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """`query[R, kv_heads, G, D]` over `keys[B, kv_heads, T, D]`: B = R single rows, or one session's R rows (B = 1).

    The G query heads that share a key head become query rows of it, so the cache is never expanded.
    """
    rows, _, group, _ = query.shape
    sessions = keys.shape[0]
    per_session = rows // sessions
    query = query.unflatten(0, (sessions, per_session)).permute(0, 2, 3, 1, 4).flatten(2, 3)  # [B, kv, G*r, D]
    count = query.shape[2]
    padded = _round_up(count, QUERY_BLOCK)
    query = torch.nn.functional.pad(query, (0, 0, 0, padded - count))
    mask = (
        mask if mask.shape[2] == 1 else torch.nn.functional.pad(mask.repeat(1, 1, group, 1), (0, 0, 0, padded - count))
    )
    mask = mask.expand(sessions, 1, padded, keys.shape[2])
    output = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    output = output[:, :, :count].unflatten(2, (group, per_session))
    return output.permute(0, 3, 1, 2, 4).flatten(0, 1)


AttentionInterface.register(ATTENTION, packed_attention)
