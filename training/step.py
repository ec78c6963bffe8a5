"""One training step as the pipeline takes it: a policy's folder and samples in; the next policy's folder out."""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.checkpoint import load_trainer, save_trainer
from training.config import TrainConfig
from training.distributed import World
from training.losses.base import LossWarning
from training.parity import parity_report, samples_of_version
from training.policy import CHECKPOINT, POLICY
from training.reports import UpdateReport, k3_mean
from training.samples import Sample
from training.trainer import Trainer

REPORT = "report.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train: the policy's folder (with `checkpoint` beside it, to go on from) and version, and how."""

    model_folder: Path
    policy_version: int
    config: TrainConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told how a step goes: each update's figures (loss, gradient norm, entropy), and lines for the log."""

    on_update: Callable[[dict[str, float]], None] = lambda figures: None
    on_line: Callable[[str], None] = lambda line: None


def take_step(
    job: Job, samples: Sequence[Sample], out: Path, *, watcher: Watcher | None = None, world: World | None = None
) -> dict[str, Any]:
    """Train once; leave `policy/`, `checkpoint/` and `report.json` in `out`, each whole or absent; return the report.

    The report is a StepReport as a dict, with `engine_gap_mean` and `engine_gap_max` (nats), and `kl_to_start` where
    there is a start folder, if the batch holds tokens of the present version; or `{"skipped": why}` for a batch with
    nothing to learn from: then the weights are copied as they are, and only the version goes on. Raises ParityError
    before anything is trained, TrainingHalted, CheckpointError, and the ValueErrors of `Trainer`. A collective act
    where `world` is several processes.
    """
    trainer = load_trainer(job.model_folder, job.config, policy_version=job.policy_version, world=world)
    told = watcher if watcher is not None and trainer.world.is_main else Watcher()
    trainer.on_update = lambda update: told.on_update(_figures(update))
    report = _train(trainer, samples, told) if any(map(_teaches, samples)) else _skip(trainer, out)
    if "skipped" not in report:
        trainer.save_policy(out / POLICY)
    save_trainer(trainer, out / CHECKPOINT)
    if trainer.world.is_main:
        (out / REPORT).write_text(json.dumps(report, indent=1, sort_keys=True))
    return report


def _teaches(sample: Sample) -> bool:
    return sample.weight > 0 and sample.num_loss_tokens > 0


def _figures(update: UpdateReport) -> dict[str, float]:
    return {"loss": update.loss, "grad_norm": update.grad_norm, "entropy": update.entropy}


def _train(trainer: Trainer, samples: Sequence[Sample], told: Watcher) -> dict[str, Any]:
    compared = _compared(trainer, samples)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", LossWarning)
        report = trainer.train_step(samples)
    for warning in warned:
        told.on_line(str(warning.message))
    return {**dataclasses.asdict(report), **compared}


def _compared(trainer: Trainer, samples: Sequence[Sample]) -> dict[str, float]:
    """Do engine and trainer agree on what the engine sampled from this very policy, and how far has it come from its
    start? A row's worth of tokens says."""
    chosen = samples_of_version(samples, trainer.policy_version, trainer.config.token_budget)
    if not chosen:
        return {}
    scored = trainer.logprobs(chosen)
    parity = parity_report(
        [s.token_ids[s.loss_mask].tolist() for s in chosen],
        [s.behaviour_logprobs[s.loss_mask].tolist() for s in chosen],
        [values[s.loss_mask].tolist() for s, values in zip(chosen, scored, strict=True)],
    ).require(trainer.config.max_engine_gap)
    gaps = {"engine_gap_mean": parity.gap_mean, "engine_gap_max": parity.gap_max}
    if trainer.config.start_folder is None:
        return gaps
    return {**gaps, "kl_to_start": _kl_to_start(trainer, chosen, scored)}


def _kl_to_start(trainer: Trainer, samples: Sequence[Sample], scored: Sequence[np.ndarray]) -> float:
    """k3 estimate of KL(policy || start) in nats. The policy sampled these tokens itself, so it is unbiased."""
    if trainer.config.start_folder == trainer.model_folder:
        return 0.0
    start = trainer.start_logprobs(samples)
    own_N, start_N = (
        np.concatenate([v[s.loss_mask] for s, v in zip(samples, values, strict=True)]).astype(np.float64)
        for values in (scored, start)
    )
    return k3_mean(own_N, start_N)


def _skip(trainer: Trainer, out: Path) -> dict[str, Any]:
    if trainer.world.is_main:
        shutil.copytree(trainer.model_folder, out / POLICY)
    trainer.policy_version += 1
    return {"skipped": "no group with a difference in it"}
