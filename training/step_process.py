"""One rank of a training step in processes of its own: `torchrun --nproc-per-node N -m training.step_process JOB`.

JOB is a folder that `step_group` made; the results are left in it. Rank 0 prints one JSON line an update, which is
log and heartbeat at once. SIGTERM ends a rank at once with status 143 and loses the step only: nothing is published
before it is done. An error that would come again is described in `failed.json`.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import NoReturn

import torch.distributed as dist

from infra import records
from training.distributed import under_torchrun
from training.errors import TrainingError
from training.guards import TrainingHalted
from training.samples import Sample
from training.step import Job, Watcher, take_step

JOB, SAMPLES, FAILED = "job.pickle", "samples.parquet", "failed.json"


def main(folder: Path) -> None:
    """Run the job as one rank of the group that torchrun describes."""
    job: Job = pickle.loads((folder / JOB).read_bytes())
    samples = records.read_parquet(Sample, folder / SAMPLES)
    world = under_torchrun()
    try:
        take_step(job, samples, folder, watcher=Watcher(on_update=_print_update, on_line=_print), world=world)
    except Exception as error:
        if not _may_pass(error):
            _describe(error, folder / FAILED)
        raise
    finally:
        dist.destroy_process_group()


def _print(line: str) -> None:
    print(line, flush=True)  # into a broken pipe once the pipeline is gone, which ends this rank too


def _print_update(figures: dict[str, float]) -> None:
    _print(json.dumps(figures))


def _may_pass(error: Exception) -> bool:
    """A peer that is gone, memory, a disk: torch says all of these by RuntimeError, of which ours is a subclass."""
    return isinstance(error, (RuntimeError, OSError)) and not isinstance(error, TrainingError)


def _describe(error: Exception, path: Path) -> None:
    """Write what went wrong for the pipeline, whole or not at all; the last rank to fail has the word."""
    ids = list(error.sample_ids) if isinstance(error, TrainingHalted) else []
    reason = error.reason if isinstance(error, TrainingHalted) else str(error)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({"kind": type(error).__name__, "reason": reason, "sample_ids": ids}))
    draft.replace(path)


def _terminated(number: int, _: object) -> NoReturn:
    os._exit(128 + number)  # a rank may hang in a collective act whose peers are gone: no clean-up can be waited for


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    main(Path(sys.argv[1]))
