"""One process and two (gloo, FSDP2): the same gradients, the same weights, of the whole model or of adapters."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from servers import free_port

from training.checkpoint import Snapshot, restore
from training.config import LoraAdapter, OptimizerConfig, TrainConfig
from training.distributed import World
from training.losses.grpo import Grpo
from training.losses.gspo import Gspo
from training.samples import Sample
from training.trainer import Trainer

Make = Callable[..., list[Sample]]
WEIGHTS = "model.safetensors"
SGD = OptimizerConfig(name="sgd", learning_rate=0.1, max_grad_norm=1e9)

SCRIPT = """
import pickle, sys
from pathlib import Path
import torch
import torch.distributed as dist
from training.checkpoint import capture, read, restore, save_trainer
from training.distributed import under_torchrun
from training.trainer import Trainer

torch.set_num_threads(1)
world = under_torchrun()
out = Path(sys.argv[2])
cases, batches = pickle.loads((out / "inputs").read_bytes())
results = []
for number, config in enumerate(cases):
    trainer = Trainer(Path(sys.argv[1]), config, world=world)
    reports = [trainer.train_step(batch) for batch in batches]
    logprobs = trainer.logprobs(batches[0])
    results.append((capture(trainer), [(r.loss, r.grad_norm, r.entropy) for r in reports], logprobs))
    trainer.save_policy(out / f"policy-{number}")
save_trainer(trainer, out / "checkpoint")
fresh = Trainer(Path(sys.argv[1]), config, world=world)
restore(fresh, read(out / "checkpoint"))
results.append((capture(fresh), [], []))
if world.is_main:
    (out / "results").write_bytes(pickle.dumps(results))
world.barrier()
dist.destroy_process_group()
"""


Result = tuple[Snapshot, list[tuple[float, float, float]], list[np.ndarray]]


def two_processes(model: Path, out: Path, cases: list[TrainConfig], batches: list[list[Sample]]) -> list[Result]:
    """For each case its state, its reports' (loss, gradient norm, entropy) and log-probabilities, as rank 0 has them;
    then the last state again, saved and restored. `policy-<case>` is left in `out`."""
    (out / "inputs").write_bytes(pickle.dumps((cases, batches)))
    common = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    common |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-c", SCRIPT, str(model), str(out)]
    ranks = [subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    try:
        assert [rank.wait(timeout=1700) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    results: list[Result] = pickle.loads((out / "results").read_bytes())
    restored, last = results[-1][0], results[-2][0]
    assert all(torch.equal(value, restored.weights[name]) for name, value in last.weights.items())
    assert last.optimizer.keys() == restored.optimizer.keys()
    assert all(torch.equal(value, restored.optimizer[name]) for name, value in last.optimizer.items())
    return results


def require_like_one(model: Path, config: TrainConfig, batches: list[list[Sample]], result: Result) -> Trainer:
    """The same steps in this process give the same reports, log-probabilities and, under SGD, movements."""
    snapshot, reports, logprobs = result
    alone = Trainer(model, config)
    expected = [alone.train_step(batch) for batch in batches]
    assert reports == [pytest.approx((r.loss, r.grad_norm, r.entropy), rel=1e-5) for r in expected]
    for ours, theirs in zip(alone.logprobs(batches[0]), logprobs, strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), atol=1e-4, rtol=0)
    if config.optimizer.name == "sgd":  # Adam divides rounding noise by itself where a gradient is nearly 0
        start = dict(Trainer(model, config).policy.named_parameters())
        for name, parameter in alone.policy.named_parameters():
            moved, theirs = parameter.detach() - start[name].detach(), snapshot.weights[name] - start[name].detach()
            assert float((moved - theirs).norm()) <= 1e-5 * float(moved.norm())
    return alone


@pytest.mark.timeout(900)  # starts two interpreters, which takes minutes on a crowded machine
def test_one_update_of_two_sharded_processes_is_that_of_one(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    config, batches = TrainConfig(optimizer=SGD, token_budget=40), [make_samples(3, seed=0)]
    result, _ = two_processes(tiny_llama, tmp_path, [config], batches)
    require_like_one(tiny_llama, config, batches, result)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two more interpreters: seconds on an idle machine, many minutes on a crowded one
def test_two_sharded_processes_train_like_one(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    cases = [
        TrainConfig(optimizer=SGD, token_budget=40),
        TrainConfig(optimizer=SGD, token_budget=10_000),  # one row: the second process has nothing of its own
        TrainConfig(optimizer=SGD, token_budget=60, loss=Gspo(), ratio_base="proximal"),
        TrainConfig(optimizer=SGD, token_budget=60, loss=Grpo(kl_beta=0.1), start_folder=tiny_llama),
        TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-3), token_budget=60, updates_per_batch=2),
    ]
    batches = [make_samples(5, seed=0), make_samples(5, seed=1)]
    results = two_processes(tiny_llama, tmp_path, cases, batches)
    for config, result in zip(cases, results[:-1], strict=True):
        require_like_one(tiny_llama, config, batches, result)
    assert load_file(tmp_path / "policy-0" / WEIGHTS).keys() == load_file(tiny_llama / WEIGHTS).keys()  # one head
    plain = Trainer(tmp_path / "policy-0", TrainConfig())
    assert all(torch.equal(p.detach(), results[0][0].weights[n]) for n, p in plain.policy.named_parameters())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_sharded_processes_train_adapters_like_one(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="the extra `lora` is not installed")
    adapter = LoraAdapter(rank=3, alpha=6.0)  # a rank that two processes cannot share evenly
    sgd = dataclasses.replace(SGD, learning_rate=1.0)  # A moves by B, which starts at 0: less would be rounding noise
    cases = [
        TrainConfig(optimizer=sgd, token_budget=40, lora=adapter),
        TrainConfig(optimizer=sgd, token_budget=60, lora=adapter, gradient_checkpointing=True),
        TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-3), token_budget=60, updates_per_batch=2, lora=adapter),
    ]
    batches = [make_samples(5, seed=0), make_samples(5, seed=1)]
    results = two_processes(tiny_llama, tmp_path, cases, batches)
    for number, (config, result) in enumerate(zip(cases, results[:-1], strict=True)):
        alone = require_like_one(tiny_llama, config, batches, result)
        restore(alone, result[0])  # what two ranks saved, one goes on from
        alone.save_policy(tmp_path / f"alone-{number}")
        ours, theirs = (load_file(tmp_path / f"{who}-{number}" / WEIGHTS) for who in ("alone", "policy"))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        assert not any("lora" in name or "base_layer" in name for name in theirs)


@pytest.mark.parametrize(("rows", "expected"), [(5, [[0, 2, 4], [1, 3, 4]]), (1, [[0], [0]]), (4, [[0, 2], [1, 3]])])
def test_rows_are_dealt_evenly_and_repeats_do_not_count(rows: int, expected: list[list[int]]) -> None:
    dealt = [World(rank=r, size=2, device=torch.device("cpu")).deal(list(range(rows))) for r in range(2)]
    assert [[row for row, _ in part] for part in dealt] == expected
    assert sorted(row for part in dealt for row, counts in part if counts) == list(range(rows))
