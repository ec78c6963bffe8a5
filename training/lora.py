"""Low-rank adapters through peft: an optional dependency, imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.config import LoraAdapter
from training.model import ModelError

ADAPTER = "default"  # peft's name for the only one there is


def add_adapters(model: Any, adapter: LoraAdapter, seed: int) -> Any:
    """`model` with trainable adapters and frozen weights; their start values depend on `seed` only."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ModelError(
            "training.lora_rank is set but `peft` is not installed; run `pip install 'longbreath[lora]'`, or set it 0"
        ) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(
            model,
            LoraConfig(
                r=adapter.rank,
                lora_alpha=adapter.alpha,
                target_modules=list(adapter.target_modules),
                task_type="CAUSAL_LM",
            ),
            adapter_name=ADAPTER,
        )


def merged_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The plain model's weights from those of `model`, which has adapters: `W + scaling * B @ A`, as peft merges.

    `weights` are whole tensors by the names that `model` gives them; the adapted ones come back as new tensors.
    """
    plain: dict[str, Tensor] = {}
    for name, value in weights.items():
        owner, adapted, rest = name.rpartition(".base_layer.")
        if adapted and rest == "weight":
            scaling: Any = model.get_submodule(owner).scaling
            delta = weights[f"{owner}.lora_B.{ADAPTER}.weight"] @ weights[f"{owner}.lora_A.{ADAPTER}.weight"]
            plain[f"{owner}.weight"] = value + delta * scaling[ADAPTER]
        elif ".lora_" not in name:
            plain[name.replace(".base_layer.", ".")] = value
    return plain
