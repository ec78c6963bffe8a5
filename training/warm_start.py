"""Supervised training on demonstrations, through the trainer and the samples that reinforcement uses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from environments.types import Trajectory
from training.config import OptimizerConfig, TrainConfig
from training.copy_drill import copying_turns, drill_samples
from training.losses.nll import NegativeLogLikelihood
from training.samples import demonstration_samples
from training.trainer import Trainer


def imitate(
    folder: Path,
    trajectories: Sequence[Trajectory],
    out: Path,
    *,
    passes: int,
    batch_size: int,
    drill: int,
    learning_rate: float,
    seed: int,
    on_step: Callable[[int, int, float], None],
) -> int:
    """Train the policy in `folder` on what was said in `trajectories`; write it to `out`; the optimizer updates taken.

    Every pass sees all samples in a new order drawn from `seed`. `drill` renumbered turns go beside each batch (see
    `copy_drill`). `on_step(step, total, loss)` after each update.
    """
    from transformers import AutoTokenizer

    samples = demonstration_samples(trajectories)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = copying_turns(trajectories, tokenizer) if drill else ()
    per_pass = -(-len(samples) // batch_size)
    total = passes * per_pass
    optimizer = OptimizerConfig(
        learning_rate=learning_rate, beta2=0.98, weight_decay=0.01, warmup_updates=total // 20, decay_updates=total
    )
    trainer = Trainer(folder, TrainConfig(loss=NegativeLogLikelihood(), optimizer=optimizer, seed=seed))
    rng = random.Random(seed)
    step = 0
    for number in range(passes):
        order = np.random.default_rng([seed, number]).permutation(len(samples))
        for part in np.array_split(order, per_pass):
            batch = [samples[i] for i in part]
            report = trainer.train_step([*batch, *drill_samples(turns, tokenizer, drill, rng)])
            on_step(step, total, report.loss)
            step += 1
    trainer.save_policy(out)
    return step
