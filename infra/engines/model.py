"""A Hugging Face folder as packed forward passes: checked when it is loaded, refused when it would be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM

from infra.engines.base import EngineError
from infra.engines.heads import scaled_logits
from infra.engines.packed import ATTENTION, KVCache, Piece, pack

# Head settings that a plain `hidden @ weight` would leave out.
_HEAD_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
_SMALLEST_ROWS = 8


class PackedModel:
    """The weights of one policy version. `hidden` and `logits` are pure functions of them and of the ids."""

    def __init__(self, folder: Path, *, max_rows: int, num_threads: int = 1) -> None:
        self._model = _load(folder)
        self._num_threads = num_threads
        self._helpers = ThreadPoolExecutor(max(num_threads - 1, 1), thread_name_prefix="attention")
        self.vocab_size: int = self._model.get_output_embeddings().weight.shape[0]
        self.max_positions: int = self._model.config.max_position_embeddings
        self.shapes = {name: tuple(p.shape) for name, p in self._model.named_parameters()}
        self._row_counts = agreeing_row_counts(self._model, max_rows)

    def hidden(self, pieces: Sequence[Piece], cache: KVCache) -> Tensor:
        """`hidden[N, H]` after the last norm, for the N tokens of `pieces` in order; the cache holds them then."""
        total = sum(len(piece.ids) for piece in pieces)
        packing = pack(pieces, self.padded(total), cache, num_threads=self._num_threads, helpers=self._helpers)
        output = self._model.get_decoder()(
            input_ids=packing.input_ids, position_ids=packing.position_ids, use_cache=False, packing=packing
        )
        hidden: Tensor = output.last_hidden_state
        return hidden[0, :total]

    def logits(self, hidden: Tensor, temperature: Tensor) -> Tensor:
        """`logits[N, V]` of `hidden[N, H]` in float32, divided by `temperature[N]`."""
        count = hidden.shape[0]
        head = self._model.get_output_embeddings()
        padded = torch.nn.functional.pad(hidden, (0, 0, 0, self.padded(count) - count))
        temperature = torch.nn.functional.pad(temperature, (0, padded.shape[0] - count), value=1.0)
        return scaled_logits(padded, head.weight, temperature)[:count]

    def close(self) -> None:
        """End the threads that helped."""
        self._helpers.shutdown()

    def padded(self, rows: int) -> int:
        """The row count, among those that agree bitwise, in which `rows` rows are computed."""
        return next(count for count in self._row_counts if count >= rows)


def _load(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise EngineError(
            f"model folder {folder} has no config.json; want a Hugging Face folder saved by save_pretrained"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=ATTENTION, local_files_only=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise EngineError(f"model folder {folder} does not load: {error}; save it again or choose another") from error
    _refuse_unsupported(folder, model)
    return model.eval()


def _refuse_unsupported(folder: Path, model: Any) -> None:
    config = model.config
    scale = next((name for name in _HEAD_SCALES if getattr(config, name, None) not in (None, 1, 1.0)), None)
    if scale is not None:
        raise EngineError(f"model folder {folder}: config.{scale} changes the head; the local engine does not apply it")
    if model.get_output_embeddings().bias is not None:
        raise EngineError(f"model folder {folder}: the head has a bias; the local engine's head has none")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise EngineError(
            f"model folder {folder}: rope type {rope!r} depends on the longest sequence of a batch; want a fixed one"
        )


def agreeing_row_counts(model: Any, max_rows: int) -> tuple[int, ...]:
    """The row counts up to `max_rows` in which every linear layer gives a row the same bits wherever it stands.

    Always holds `max_rows`. Each distinct weight shape is tried once on random rows.
    """
    candidates = [n for n in (8, 16, *range(32, max_rows, 32)) if n < max_rows]
    linears = {m.weight.shape: m for m in model.modules() if isinstance(m, torch.nn.Linear)}
    with torch.inference_mode():
        agreeing = [n for n in candidates if all(_agrees(m, n, max_rows) for m in linears.values())]
    return (*agreeing, max_rows)


def _agrees(linear: torch.nn.Linear, count: int, max_rows: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(max_rows, linear.in_features, generator=generator).to(linear.weight)
    whole = linear(rows)
    return torch.equal(linear(rows[:count]), whole[:count]) and torch.equal(linear(rows[-count:]), whole[-count:])
