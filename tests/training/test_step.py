"""One step as the pipeline takes it: what it compares before it trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training.config import OptimizerConfig, TrainConfig
from training.samples import Sample
from training.step import Job, take_step
from training.trainer import Trainer

Make = Callable[..., list[Sample]]


def of_version(version: int, samples: list[Sample]) -> list[Sample]:
    return [
        dataclasses.replace(s, policy_versions=np.where(s.loss_mask, version, -1).astype(np.int32)) for s in samples
    ]


def k3_by_hand(policy: Path, start: Path, samples: list[Sample]) -> float:
    own, other = (Trainer(folder, TrainConfig()).logprobs(samples) for folder in (policy, start))
    differences = [b[s.loss_mask] - a[s.loss_mask] for s, a, b in zip(samples, own, other, strict=True)]
    return float(np.mean([np.exp(d) - d - 1 for d in np.concatenate(differences).astype(np.float64)]))


def test_every_step_says_how_far_its_policy_has_come_from_the_start(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    config = TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-2), start_folder=tiny_llama)
    first, second = make_samples(4, seed=0), of_version(1, make_samples(4, seed=1))
    reports = []
    folder = tiny_llama
    for version, samples in enumerate((first, second)):
        out = tmp_path / f"{version}"
        out.mkdir()
        job = Job(model_folder=folder, policy_version=version, config=config)
        reports.append(take_step(job, samples, out))
        before, folder = folder, out / "policy"
    assert reports[0]["kl_to_start"] == 0.0
    assert reports[1]["kl_to_start"] == pytest.approx(k3_by_hand(before, tiny_llama, second), rel=1e-5)
    assert reports[1]["kl_to_start"] > 0.01
    assert len(reports[1]["decile_gradient_share"]) == len(reports[1]["ratio_histogram"]) == 10


def test_without_tokens_of_its_own_or_without_a_start_no_kl_to_it_is_said(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    cases = {"stale": (3, TrainConfig(start_folder=tiny_llama)), "no_start": (0, TrainConfig())}
    for name, (version, config) in cases.items():
        (tmp_path / name).mkdir()
        job = Job(model_folder=tiny_llama, policy_version=version, config=config)
        assert take_step(job, make_samples(4), tmp_path / name)["kl_to_start"] is None
