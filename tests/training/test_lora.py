"""Adapters: they alone move, they merge into a plain folder, and a run with them resumes as if never stopped.

Needs the extra `lora`: `pip install -e '.[lora]'` (peft); `make test` brings it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from training.checkpoint import load_trainer, save_trainer
from training.config import LoraAdapter, OptimizerConfig, TrainConfig
from training.samples import Sample
from training.trainer import Trainer

pytest.importorskip("peft", reason="the extra `lora` is not installed")

Make = Callable[..., list[Sample]]
CONFIG = TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-2), lora=LoraAdapter(rank=2, alpha=4.0))


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.named_parameters()}


def test_only_adapters_move_and_their_start_depends_on_the_seed_alone(tiny_llama: Path, make_samples: Make) -> None:
    trainer, twin = Trainer(tiny_llama, CONFIG), Trainer(tiny_llama, CONFIG)
    before = weights_of(trainer)
    assert all(torch.equal(value, before[name]) for name, value in weights_of(twin).items())
    for _ in range(2):  # the first update moves B alone, since A's gradient is B times something and B starts at 0
        trainer.train_step(make_samples())
    moved = {name for name, value in weights_of(trainer).items() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}
    assert len(moved) == 2 * 2 * 7  # A and B of 7 linear maps in each of 2 layers


def test_a_merged_policy_is_a_plain_folder_with_the_same_log_probabilities(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    trainer = Trainer(tiny_llama, CONFIG)
    trainer.train_step(make_samples())
    folder = trainer.save_policy(tmp_path / "policy")
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in tiny_llama.iterdir())
    trainer.train_step(make_samples(seed=1))  # saving took nothing from the trainer
    trainer.save_policy(tmp_path / "later")
    plain = Trainer(tmp_path / "later", TrainConfig())
    assert not any("lora" in name for name, _ in plain.policy.named_parameters())
    start = Trainer(tiny_llama, TrainConfig()).logprobs(make_samples())
    for ours, theirs, first in zip(
        trainer.logprobs(make_samples()), plain.logprobs(make_samples()), start, strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert np.abs(ours - first).max() > 1e-2


def test_a_resumed_run_has_the_adapters_and_the_base_of_one_that_never_stopped(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    straight = Trainer(tiny_llama, CONFIG)
    straight.train_step(make_samples(seed=0))
    straight.save_policy(tmp_path / "policy")
    save_trainer(straight, tmp_path / "checkpoint")
    resumed = load_trainer(tmp_path / "policy", CONFIG, policy_version=1)
    for trainer in (straight, resumed):
        trainer.train_step(make_samples(seed=1))
    theirs = weights_of(resumed)
    assert all(torch.equal(value, theirs[name]) for name, value in weights_of(straight).items())
