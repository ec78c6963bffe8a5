"""One training step in processes of its own: `torchrun --nproc-per-node N -m training.step_process JOB`.

JOB is a folder that `write_job` made. Rank 0 prints one JSON line an update, which is log and heartbeat at once, and
leaves `policy/`, `checkpoint/` and `report.json` in JOB, each whole or absent. SIGTERM ends a rank at once with
status 143 and loses the step only: nothing is published before it is done, and the same JOB can be run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from infra import records
from training.checkpoint import load_trainer, save_trainer
from training.config import TrainConfig
from training.distributed import under_torchrun
from training.guards import TrainingHalted
from training.reports import UpdateReport
from training.samples import Sample

JOB, SAMPLES, REPORT, HALTED = "job.pickle", "samples.parquet", "report.json", "halted.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train: the policy's folder (with `checkpoint` beside it, to go on from) and version, and how."""

    model_folder: Path
    policy_version: int
    config: TrainConfig


def write_job(folder: Path, job: Job, samples: Sequence[Sample]) -> None:
    """Write a job for `main` into an existing folder. It is pickled: run only jobs of your own."""
    records.write_parquet(samples, folder / SAMPLES, cls=Sample)
    (folder / JOB).write_bytes(pickle.dumps(job))


def main(folder: Path) -> None:
    """Run the job as one rank of the group that torchrun describes. Raises TrainingHalted, its samples saved."""
    import torch.distributed as dist

    job: Job = pickle.loads((folder / JOB).read_bytes())
    samples = records.read_parquet(Sample, folder / SAMPLES)
    world = under_torchrun()
    try:
        trainer = load_trainer(job.model_folder, job.config, policy_version=job.policy_version, world=world)
        if world.is_main:
            trainer.on_update = _print_update
        report = trainer.train_step(samples)
        trainer.save_policy(folder / "policy")
        save_trainer(trainer, folder / "checkpoint")
        if world.is_main:
            (folder / REPORT).write_text(json.dumps(dataclasses.asdict(report), indent=1))
    except TrainingHalted as halted:
        if world.is_main:
            halted.save(folder / HALTED)
        raise
    finally:
        dist.destroy_process_group()


def _print_update(report: UpdateReport) -> None:
    print(json.dumps({"loss": report.loss, "grad_norm": report.grad_norm, "entropy": report.entropy}), flush=True)


def _terminated(number: int, _: object) -> NoReturn:
    os._exit(128 + number)  # a rank may hang in a collective act whose peers are gone: no clean-up can be waited for


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    main(Path(sys.argv[1]))
