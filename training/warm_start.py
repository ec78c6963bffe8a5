"""Supervised training from nothing, through the trainer and the samples that reinforcement uses.

Two lessons. First to copy: random tokens, and then the same tokens again. A small model learns in minutes to look
back for what stood after the present token (an induction head; Olsson et al. 2022, arXiv 2209.11895), which
demonstrations alone teach very slowly, and without which no name or number can be taken from an observation.
Then to imitate demonstrations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from environments.types import Trajectory
from training.config import OptimizerConfig, TrainConfig
from training.losses.nll import NegativeLogLikelihood
from training.samples import Sample, demonstration_samples
from training.trainer import Trainer

_COPY_BATCH = 24


def learn_to_copy(
    folder: Path, out: Path, *, steps: int, learning_rate: float, seed: int, on_step: Callable[[int, int, float], None]
) -> int:
    """Train the policy in `folder` to repeat random token sequences of 4 to 32 tokens; write it to `out`; the steps."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    trainer = Trainer(folder, _config(steps, learning_rate, seed))
    for step in range(steps):
        rng = np.random.default_rng([seed, 1, step])
        report = trainer.train_step([_copy_sample(rng, vocabulary, f"{step}-{i}") for i in range(_COPY_BATCH)])
        on_step(step, steps, report.loss)
    trainer.save_policy(out)
    return steps


def _copy_sample(rng: np.random.Generator, vocabulary: int, name: str) -> Sample:
    """Random tokens, some more, and the first ones again; only what can be known is trained on."""
    length, gap = int(rng.integers(4, 33)), int(rng.integers(0, 9))
    start = rng.choice(vocabulary, size=length, replace=False)
    ids = np.concatenate([start, rng.integers(0, vocabulary, size=gap), start]).astype(np.int32)
    mask = np.zeros(len(ids), dtype=np.bool_)
    mask[length + gap + 1 :] = True
    zeros = np.zeros(len(ids), dtype=np.float32)
    return Sample(
        token_ids=ids,
        loss_mask=mask,
        behaviour_logprobs=zeros,
        advantages=mask.astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        weight=1.0,
        temperature=1.0,
        chain_id=name,
        rollout_id=name,
        group_id=name,
    )


def _config(steps: int, learning_rate: float, seed: int) -> TrainConfig:
    optimizer = OptimizerConfig(
        learning_rate=learning_rate, beta2=0.98, weight_decay=0.01, warmup_updates=steps // 20, decay_updates=steps
    )
    return TrainConfig(loss=NegativeLogLikelihood(), optimizer=optimizer, seed=seed)


def imitate(
    folder: Path,
    trajectories: Sequence[Trajectory],
    out: Path,
    *,
    passes: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    on_step: Callable[[int, int, float], None],
) -> int:
    """Train the policy in `folder` on what was said in `trajectories`; write it to `out`; the optimizer updates taken.

    Every pass sees all samples in a new order drawn from `seed`. `on_step(step, total, loss)` after each update.
    """
    samples = demonstration_samples(trajectories)
    per_pass = -(-len(samples) // batch_size)
    total = passes * per_pass
    trainer = Trainer(folder, _config(total, learning_rate, seed))
    step = 0
    for number in range(passes):
        order = np.random.default_rng([seed, number]).permutation(len(samples))
        for part in np.array_split(order, per_pass):
            report = trainer.train_step([samples[i] for i in part])
            on_step(step, total, report.loss)
            step += 1
    trainer.save_policy(out)
    return step
