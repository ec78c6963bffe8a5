"""A tiny Llama and samples for it, made from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from training.samples import Sample

VOCAB = 96


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HF folder: 2 layers, 32 wide, grouped-query attention, tied head, and a tokenizer file to be copied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "llama"
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"made_for": "a test"}\n')
    return folder


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., list[Sample]]:
    def make(count: int = 6, seed: int = 0, lengths: tuple[int, int] = (12, 40)) -> list[Sample]:
        rng = np.random.default_rng(seed)
        return [_sample(rng, index, int(rng.integers(*lengths))) for index in range(count)]

    return make


def _sample(rng: np.random.Generator, index: int, length: int) -> Sample:
    mask = np.arange(length) >= 4
    mask[6:9] = False  # an observation in the middle
    return Sample(
        token_ids=rng.integers(0, VOCAB, length).astype(np.int32),
        loss_mask=mask,
        behaviour_logprobs=np.where(mask, rng.uniform(-6, -3, length), 0).astype(np.float32),
        advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        weight=1.0,
        temperature=0.8,
        chain_id=f"c{index}",
        rollout_id=f"r{index}",
        group_id=f"g{index // 2}",
    )
