"""Low-rank adapters through peft: an optional dependency, imported where it is used."""

from __future__ import annotations

from typing import Any

import torch

from training.config import LoraAdapter
from training.model import ModelError


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
        )
