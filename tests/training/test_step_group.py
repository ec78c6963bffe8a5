"""A training step in a process group of its own gives what the same step gives here, and never half of it."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from training.checkpoint import read
from training.config import OptimizerConfig, TrainConfig
from training.errors import StepFailed, StepLost
from training.guards import TrainingHalted
from training.samples import Sample
from training.step import Job, Watcher, take_step
from training.step_group import GroupLimits, take_step_apart

Make = Callable[..., list[Sample]]
CONFIG = TrainConfig(optimizer=OptimizerConfig(name="sgd", learning_rate=0.1), updates_per_batch=2)
ONE = GroupLimits(processes=1, timeout_s=800, silence_s=800)

# Each test starts interpreters, which takes minutes on a crowded machine.
pytestmark = pytest.mark.timeout(900)


def step_processes() -> list[psutil.Process]:
    """Ours that are alive. Other tests may have left zombies, which have no command line."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "training.step_process" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.slow  # tests/tasks/test_train.py says as much of the stage
def test_a_step_of_one_rank_is_bitwise_the_step_here(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    job, samples = Job(model_folder=tiny_llama, policy_version=3, config=CONFIG), make_samples(6)
    there: list[dict[str, float]] = []
    here: list[dict[str, float]] = []
    report = take_step_apart(job, samples, tmp_path / "there", ONE, watcher=Watcher(on_update=there.append))
    take_step(job, samples, new(tmp_path / "here"), watcher=Watcher(on_update=here.append))
    assert report["policy_version"] == 4
    assert len(there) == 2
    assert there == here
    names = ("policy/model.safetensors", "policy/tokenizer_config.json", "checkpoint/optimizer.safetensors")
    for name in names:
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_a_killed_rank_loses_the_step_and_leaves_no_half_of_it(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    updates: list[dict[str, float]] = []

    def kill(figures: dict[str, float]) -> None:
        updates.append(figures)
        if len(updates) == 1:
            max(step_processes(), key=lambda p: p.create_time()).send_signal(signal.SIGKILL)

    slow = dataclasses.replace(CONFIG, passes_per_batch=2000)
    job = Job(model_folder=tiny_llama, policy_version=0, config=slow)
    lines: list[str] = []
    with pytest.raises(StepLost, match=r"exit code 1 .*Take it again"):
        take_step_apart(
            job, make_samples(6), tmp_path / "killed", ONE, watcher=Watcher(on_update=kill, on_line=lines.append)
        )
    assert not (tmp_path / "killed" / "policy").exists()
    assert any("SIGKILL" in line for line in lines)


def test_a_step_past_its_time_is_stopped_with_all_its_processes(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    job = Job(model_folder=tiny_llama, policy_version=0, config=CONFIG)
    short = dataclasses.replace(ONE, timeout_s=0.2)
    with pytest.raises(StepLost, match=r"ran past training\.timeout_s = 0\.2"):
        take_step_apart(job, make_samples(2), tmp_path / "late", short, watcher=Watcher())
    assert not step_processes()


@pytest.mark.slow
def test_a_broken_batch_is_named_and_a_folder_that_is_no_model_fails_at_once(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    job = Job(model_folder=tiny_llama, policy_version=0, config=CONFIG)
    [sample] = make_samples(1)
    huge = dataclasses.replace(sample, advantages=sample.advantages * np.float32(1e38))
    with pytest.raises(TrainingHalted, match="offending samples: c0"):
        take_step_apart(job, [huge], tmp_path / "halted", ONE, watcher=Watcher())
    broken = dataclasses.replace(job, model_folder=tmp_path)
    with pytest.raises(StepFailed, match=r"ModelError: .* has no config\.json"):
        take_step_apart(broken, make_samples(2), tmp_path / "failed", ONE, watcher=Watcher())


@pytest.mark.slow
def test_a_step_of_two_ranks_trains_like_one(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, token_budget=60)
    job, samples = Job(model_folder=tiny_llama, policy_version=0, config=config), make_samples(6)
    two = dataclasses.replace(ONE, processes=2)
    there = take_step_apart(job, samples, tmp_path / "there", two, watcher=Watcher())
    here = take_step(job, samples, new(tmp_path / "here"))
    assert figures(there) == pytest.approx(figures(here), rel=1e-5)
    start = read_weights(take_nothing(job, samples, tmp_path / "start"))
    ours, theirs = read_weights(tmp_path / "here"), read_weights(tmp_path / "there")
    for name, value in start.items():
        moved = ours[name] - value
        assert float((theirs[name] - ours[name]).norm() / moved.norm()) < 1e-4


def figures(report: dict[str, Any]) -> list[float]:
    return [report[name] for name in ("loss", "grad_norm", "entropy", "ratio_mean")]


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def take_nothing(job: Job, samples: list[Sample], out: Path) -> Path:
    report = take_step(job, [dataclasses.replace(s, weight=0.0) for s in samples], new(out))
    assert report == {"skipped": "no group with a difference in it"}
    return out


def read_weights(step: Path) -> dict[str, torch.Tensor]:
    return dict(read(step / "checkpoint").weights)
