"""Checkpoints: a killed and resumed run ends with the very weights of one that was left alone."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from training.checkpoint import CheckpointError, capture, load_trainer, save_trainer
from training.config import LoraAdapter, OptimizerConfig, TrainConfig
from training.samples import Sample
from training.trainer import Trainer

Make = Callable[..., list[Sample]]
CONFIG = TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-2, warmup_updates=4), updates_per_batch=2)

# Takes three steps as the pipeline does, each from what the last one left, begins a fourth, and kills itself.
SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
import torch
from training.checkpoint import load_trainer
from training.step import Job, take_step

folder, root, inputs, threads = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
config, batches = pickle.loads(inputs.read_bytes())
for version in range(3):
    out = root / str(version + 1)
    out.mkdir(parents=True)
    take_step(Job(model_folder=folder, policy_version=version, config=config), batches[version], out)
    folder = out / "policy"
load_trainer(folder, config, policy_version=3).train_step(batches[3])  # work that is lost
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_after_three(model: Path, root: Path, batches: list[list[Sample]]) -> int:
    """The exit status of a process of its own that trains and dies."""
    inputs = root.with_suffix(".pickle")
    inputs.write_bytes(pickle.dumps((CONFIG, batches)))
    command = [sys.executable, "-c", SCRIPT, str(model), str(root), str(inputs), str(torch.get_num_threads())]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, env=environment, timeout=800, check=False).returncode


@pytest.mark.timeout(900)  # starts a second interpreter, which takes minutes on a crowded machine
def test_six_steps_equal_three_a_kill_and_three_more(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    batches = [make_samples(6, seed=s) for s in range(6)]
    whole = Trainer(tiny_llama, CONFIG)
    for batch in batches:
        whole.train_step(batch)
    assert killed_after_three(tiny_llama, tmp_path / "killed", batches) == -signal.SIGKILL
    resumed = load_trainer(tmp_path / "killed" / "3" / "policy", CONFIG, policy_version=3)
    for batch in batches[3:]:
        resumed.train_step(batch)
    left, right = capture(whole), capture(resumed)
    assert left.state == right.state
    for ours, theirs in ((left.weights, right.weights), (left.optimizer, right.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def one_step(model: Path, make_samples: Make, root: Path) -> Trainer:
    """A trainer after one step, its policy and checkpoint in `root`."""
    trainer = Trainer(model, CONFIG)
    trainer.train_step(make_samples(6, seed=0))
    trainer.save_policy(root / "policy")
    save_trainer(trainer, root / "checkpoint")
    return trainer


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("flipped", "weights.safetensors is not what was written"),
        ("missing", "half written or damaged: FileNotFoundError"),
        ("no_manifest", "half written or damaged: FileNotFoundError"),
        ("broken_manifest", "half written or damaged: JSONDecodeError"),
        ("truncated", "weights.safetensors is not what was written"),
    ],
)
def test_a_damaged_checkpoint_is_never_gone_on_from(
    tiny_llama: Path, make_samples: Make, tmp_path: Path, damage: str, said: str
) -> None:
    one_step(tiny_llama, make_samples, tmp_path)
    folder = tmp_path / "checkpoint"
    weights = folder / "weights.safetensors"
    match damage:
        case "flipped":
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
        case "missing":
            (folder / "optimizer.safetensors").unlink()
        case "no_manifest":
            (folder / "manifest.json").unlink()
        case "broken_manifest":
            (folder / "manifest.json").write_text("{")
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=said):
        load_trainer(tmp_path / "policy", CONFIG, policy_version=1)


def test_a_checkpoint_is_never_overwritten(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    trainer = one_step(tiny_llama, make_samples, tmp_path)
    with pytest.raises(CheckpointError, match="never overwritten"):
        save_trainer(trainer, tmp_path / "checkpoint")


def test_a_trainer_goes_on_from_the_checkpoint_beside_its_policy(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    straight = one_step(tiny_llama, make_samples, tmp_path)
    resumed = load_trainer(tmp_path / "policy", CONFIG, policy_version=1)
    for trainer in (straight, resumed):
        trainer.train_step(make_samples(6, seed=1))
    theirs = dict(resumed.policy.named_parameters())
    assert all(torch.equal(p, theirs[n]) for n, p in straight.policy.named_parameters())
    with pytest.raises(CheckpointError, match="of policy version 1, the policy is 7"):
        load_trainer(tmp_path / "policy", CONFIG, policy_version=7)
    shutil.rmtree(tmp_path / "checkpoint")
    assert load_trainer(tmp_path / "policy", CONFIG, policy_version=7).policy_version == 7


def test_a_checkpoint_of_another_kind_is_refused(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    one_step(tiny_llama, make_samples, tmp_path)
    with pytest.raises(CheckpointError, match="of optimizer adamw"):
        load_trainer(tmp_path / "policy", TrainConfig(optimizer=OptimizerConfig(name="sgd")), policy_version=1)
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    with pytest.raises(CheckpointError, match=r"parameters differ, .* set model and training\.lora_rank back"):
        load_trainer(tmp_path / "policy", TrainConfig(lora=LoraAdapter()), policy_version=1)


@pytest.mark.gpu
def test_the_random_state_of_a_gpu_is_kept_too(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    one_step(tiny_llama, make_samples, tmp_path)
    expected = torch.rand(4, device="cuda")
    torch.rand(9, device="cuda")
    load_trainer(tmp_path / "policy", CONFIG, policy_version=1)
    assert torch.equal(torch.rand(4, device="cuda"), expected)
