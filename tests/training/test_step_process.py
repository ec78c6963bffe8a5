"""A training step in a process group of its own gives what the same step gives here, and dies when told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from training.checkpoint import read
from training.config import OptimizerConfig, TrainConfig
from training.samples import Sample
from training.step_process import Job, write_job
from training.trainer import Trainer

CONFIG = TrainConfig(optimizer=OptimizerConfig(name="sgd", learning_rate=0.1), updates_per_batch=2)


def start(folder: Path) -> subprocess.Popen[str]:
    """The rank that `torchrun --nproc-per-node 1` would start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, **group, "PYTHONPATH": root, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "training.step_process", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(900)  # starts a second interpreter, which takes minutes on a crowded machine
def test_a_step_elsewhere_is_the_step_here_and_a_terminated_one_leaves_nothing(
    tiny_llama: Path, make_samples: Callable[..., list[Sample]], tmp_path: Path
) -> None:
    samples = make_samples(6)
    write_job(tmp_path, Job(model_folder=tiny_llama, policy_version=3, config=CONFIG), samples)
    early = start(tmp_path)
    early.terminate()
    assert early.wait(timeout=60) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert not (tmp_path / "policy").exists()
    child = start(tmp_path)
    output, _ = child.communicate(timeout=800)
    assert child.returncode == 0
    here = Trainer(tiny_llama, CONFIG, policy_version=3)
    report = here.train_step(samples)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [line["loss"] for line in lines] == [u.loss for u in report.updates]
    assert json.loads((tmp_path / "report.json").read_text())["policy_version"] == 4
    there = read(tmp_path / "checkpoint")
    assert all(torch.equal(p.detach(), there.weights[n]) for n, p in here.policy.named_parameters())
    assert (tmp_path / "policy" / "tokenizer_config.json").is_file()
