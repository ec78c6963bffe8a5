"""A causal language model as the trainer sees it: packed rows in; loss, statistics and gradients out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from training.attention import register_packed_attention
from training.distributed import is_sharded, whole_weights
from training.logprobs import ChunkLoss, HeadInputs, TokenStats, chunk_tokens_for, one_pass_loss, token_logprobs
from training.packing import PackedRow

Precision = Literal["float32", "bfloat16"]
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")


class ModelError(ValueError):
    """A model folder that cannot be trained. The message says what was found and what is wanted."""


def load_causal_lm(folder: Path, *, gradient_checkpointing: bool = False) -> Any:
    """The HF model of `folder` in float32 with packed attention, in training mode. Raises ModelError."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json; want a Hugging Face model folder")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=register_packed_attention()
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be loaded as a causal language model: {error}") from error
    _check_trainable(folder, model)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def _check_trainable(folder: Path, model: nn.Module) -> None:
    """Refuse what the one-pass head or a policy ratio cannot express, rather than train something else."""
    config: Any = model.config
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    if head is None or getattr(head, "bias", None) is not None:
        raise ModelError(f"{folder}: the model's head is not a plain linear map; want one without bias")
    neutral: dict[str, float | None] = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}
    for name, value in neutral.items():
        if getattr(config, name, value) not in (None, value):
            raise ModelError(f"{folder}: config.{name} changes the logits after the head, which is not supported")
    dropout = [n for n, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p > 0]
    if dropout or getattr(config, "attention_dropout", 0.0) > 0:
        raise ModelError(f"{folder}: the model has dropout ({dropout or 'attention'}); set it to 0, ratios need none")


class PackedPolicy(nn.Module):
    """Body, head and loss as one module, so that a sharded run gathers the head's weight like any other.

    `chunk_elements`: numbers in one chunk of logits (None: what suits the device). The body runs in `precision` by
    autocast, the head in float32.
    """

    def __init__(self, model: Any, *, precision: Precision, chunk_elements: int | None) -> None:
        super().__init__()
        self.model = model
        self.precision = precision
        self.chunk_elements = chunk_elements

    @property
    def max_positions(self) -> int:
        """The longest sample that the model can place."""
        return int(self.model.config.max_position_embeddings)

    @property
    def vocab_size(self) -> int:
        """How many tokens the head scores."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def body(self) -> nn.Module:
        """The transformer below the head."""
        inner = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
        body: nn.Module = inner.base_model
        return body

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks of the body: the units of sharding. Raises ModelError where they cannot be found."""
        found = [m for m in self.body.children() if isinstance(m, nn.ModuleList)]
        if len(found) != 1:
            raise ModelError(f"{type(self.body).__name__} has {len(found)} lists of layers; want exactly one")
        return list(found[0])

    def exportable(self) -> tuple[Any, dict[str, Tensor] | None]:
        """The plain model to save, and its weights where they are not simply its own: those of a sharded model whole
        (a collective act), those of an adapted one merged."""
        if hasattr(self.model, "peft_config"):
            from training.lora import merged_weights

            plain = self.model.get_base_model()
            return plain, merged_weights(plain, whole_weights(plain))
        return self.model, whole_weights(self.model) if is_sharded(self) else None

    def _head_inputs(self, row: PackedRow) -> HeadInputs:
        device = row.token_ids_1T.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16"):
            output = self.body(
                input_ids=row.token_ids_1T,
                position_ids=row.position_ids_1T,
                use_cache=False,
                segment_lengths=row.lengths,
            )
        weight_VH: Tensor = self.model.get_output_embeddings().weight
        return HeadInputs(
            hidden_NH=output.last_hidden_state[0].index_select(0, row.predictor_N),
            weight_VH=weight_VH,
            targets_N=row.targets_N,
            temperature_N=row.temperature_N,
            chunk_tokens=chunk_tokens_for(weight_VH.shape[0], self.chunk_elements, device.type),
        )

    def forward(
        self, row: PackedRow, loss: ChunkLoss | None = None, *, token_local: bool = True
    ) -> tuple[Tensor, TokenStats | None]:
        """With a loss: (the weighted loss, its tokens' statistics). Without: (log-probabilities `[N]`, None)."""
        if loss is None:
            with torch.no_grad():
                return token_logprobs(self._head_inputs(row)), None
        return one_pass_loss(self._head_inputs(row), loss, token_local=token_local)


def export_folder(model: Any, state: dict[str, Tensor] | None, source: Path, target: Path) -> None:
    """Write a plain HF folder: weights and config of `model`, every other file (tokenizer, template) of `source`.

    `state` overrides the weights (a sharded run passes the gathered ones, one with adapters the merged ones).
    Published by a rename: `target` is whole or absent. Raises ModelError if `target` exists.
    """
    if target.exists():
        raise ModelError(f"{target} exists already; policies are never overwritten, choose another folder")
    draft = target.with_name(f".{target.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft, **({} if state is None else {"state_dict": state}))
    for path in sorted(source.iterdir()):
        is_weights = any(path.match(pattern) for pattern in WEIGHT_FILES)
        if path.is_file() and not is_weights and not (draft / path.name).exists():
            shutil.copyfile(path, draft / path.name)
    draft.rename(target)
