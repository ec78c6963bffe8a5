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

from training.checkpoint import Checkpointer, CheckpointError, capture, load_trainer, save_trainer
from training.config import OptimizerConfig, TrainConfig
from training.samples import Sample
from training.trainer import Trainer

Make = Callable[..., list[Sample]]
CONFIG = TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-2, warmup_updates=4), updates_per_batch=2)

# Trains three steps, saving each, begins a fourth, and kills itself without warning.
SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
import torch
from training.checkpoint import Checkpointer
from training.trainer import Trainer

model, root, inputs, threads = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(threads)
config, batches = pickle.loads(inputs.read_bytes())
trainer, series = Trainer(model, config), Checkpointer(root)
for number in range(3):
    trainer.train_step(batches[number])
    series.save(trainer, {"next_batch": number + 1})
series.wait()
trainer.train_step(batches[3])  # work that is lost
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
    whole, resumed = Trainer(tiny_llama, CONFIG), Trainer(tiny_llama, CONFIG)
    for batch in batches:
        whole.train_step(batch)
    assert killed_after_three(tiny_llama, tmp_path / "killed", batches) == -signal.SIGKILL
    restored = Checkpointer(tmp_path / "killed").restore_latest(resumed)
    assert restored is not None
    assert restored.position == {"next_batch": 3}
    for batch in batches[3:]:
        resumed.train_step(batch)
    left, right = capture(whole, {}), capture(resumed, {})
    assert left.state == right.state
    for ours, theirs in ((left.weights, right.weights), (left.optimizer, right.optimizer)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def three_steps(model: Path, make_samples: Make, root: Path) -> tuple[Trainer, Checkpointer]:
    trainer, series = Trainer(model, CONFIG), Checkpointer(root)
    for number in range(3):
        trainer.train_step(make_samples(4, seed=number))
        series.save(trainer, {"next_batch": number + 1})
    series.wait()
    return trainer, series


@pytest.mark.parametrize("damage", ["flipped", "missing", "no_manifest", "truncated"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tiny_llama: Path, make_samples: Make, tmp_path: Path, damage: str
) -> None:
    _, series = three_steps(tiny_llama, make_samples, tmp_path / "c")
    newest = series.series()[-1]
    weights = newest / "weights.safetensors"
    match damage:
        case "flipped":
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
        case "missing":
            (newest / "optimizer.safetensors").unlink()
        case "no_manifest":
            (newest / "manifest.json").unlink()
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:100])
    fresh = Trainer(tiny_llama, CONFIG)
    restored = series.restore_latest(fresh)
    assert restored is not None
    assert (restored.path.name, restored.position, fresh.step) == ("step-00000002", {"next_batch": 2}, 2)
    assert "step-00000003" in restored.skipped[0]
    fresh.train_step(make_samples(4, seed=2))
    series.save(fresh, {"next_batch": 3})  # the place of the damaged one is free again
    series.close()


def test_nothing_there_is_none_and_nothing_usable_is_an_error(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    trainer, series = three_steps(tiny_llama, make_samples, tmp_path / "c")
    assert Checkpointer(tmp_path / "empty").restore_latest(trainer) is None
    for folder in series.series():
        (folder / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        series.restore_latest(trainer)


def test_the_last_three_are_kept_and_none_is_overwritten(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    trainer, series = three_steps(tiny_llama, make_samples, tmp_path / "c")
    trainer.train_step(make_samples(4, seed=3))
    series.save(trainer)
    series.wait()
    assert [p.name for p in series.series()] == ["step-00000002", "step-00000003", "step-00000004"]
    series.save(trainer)
    with pytest.raises(CheckpointError, match="never overwritten"):
        series.wait()


def test_a_trainer_goes_on_from_the_checkpoint_beside_its_policy(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    straight = Trainer(tiny_llama, CONFIG)
    straight.train_step(make_samples(6, seed=0))
    straight.save_policy(tmp_path / "policy")
    save_trainer(straight, tmp_path / "checkpoint")
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
    _, series = three_steps(tiny_llama, make_samples, tmp_path / "c")
    other = Trainer(tiny_llama, TrainConfig(optimizer=OptimizerConfig(name="sgd")))
    with pytest.raises(CheckpointError, match="of optimizer adamw"):
        series.restore_latest(other)
