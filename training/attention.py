"""Attention for packed rows: causal within each segment, nothing across, at the cost of the segments only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

PACKED = "longbreath_training"  # the local engine registers another function of its own


class AttentionError(ValueError):
    """A model whose attention this function does not compute. The message names what it lacks."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segment_lengths: tuple[int, ...],
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`query [1, heads, T, d]`, `key`/`value [1, kv_heads, T, d]` -> `[1, T, heads, d]`.

    `segment_lengths` sum to T. Each segment is one fused attention call, so a row costs the sum of the squares of
    its segments, not the square of the row, and no mask is built. Raises AttentionError for what it does not
    compute: a sliding window shorter than a segment, soft caps, attention sinks, dropout.
    """
    _refuse_unsupported(segment_lengths, dropout, sliding_window, softcap, s_aux)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    lengths = list(segment_lengths)
    outputs = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling)
        for q, k, v in zip(*(torch.split(x, lengths, dim=2) for x in (query, key, value)), strict=True)
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _refuse_unsupported(
    lengths: tuple[int, ...], dropout: float, sliding_window: int | None, softcap: float | None, s_aux: Tensor | None
) -> None:
    if sliding_window is not None and max(lengths) > sliding_window:
        raise AttentionError(f"a segment of {max(lengths)} tokens exceeds the model's sliding window {sliding_window}")
    if softcap is not None or s_aux is not None:
        raise AttentionError("the model uses attention soft caps or sinks, which packed attention does not compute")
    if dropout:
        raise AttentionError(f"attention dropout is {dropout}; ratios need a deterministic policy, set it to 0")


def register_packed_attention() -> str:
    """Make transformers know `packed_attention`; returns the name for `attn_implementation`. Idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)
    return PACKED
