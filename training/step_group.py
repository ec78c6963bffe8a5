"""A training step in processes of its own, from the pipeline's side: started, listened to, ended with all of them."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra import records
from infra.processes import ProcessEnd, run_streaming
from training.errors import StepFailed, StepLost
from training.guards import TrainingHalted
from training.samples import Sample
from training.step import REPORT, Job, Watcher
from training.step_process import FAILED, JOB, SAMPLES
from training.trainer import num_threads

CHECKOUT = Path(__file__).parent.parent
LAST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """When a group of `processes` counts as lost: it runs past `timeout_s`, or prints nothing for `silence_s` (an
    update prints a line). It then gets SIGTERM, and SIGKILL `grace_s` later."""

    processes: int
    timeout_s: float
    silence_s: float
    grace_s: float = 10.0


def take_step_apart(
    job: Job,
    samples: Sequence[Sample],
    folder: Path,
    limits: GroupLimits,
    *,
    watcher: Watcher,
    on_heartbeat: Callable[[float], None] = lambda elapsed_s: None,
) -> dict[str, Any]:
    """`training.step.take_step` by `limits.processes` ranks (nccl on CUDA, else gloo); results in `folder`, a new one.

    One rank gives bitwise the weights of this process; several differ by the order of summation. The ranks share
    this process's number of threads. `on_heartbeat(elapsed_s)` comes every half minute.
    Raises StepLost where taking the step again may help, TrainingHalted and StepFailed where it will not.
    """
    folder.mkdir(parents=True)
    records.write_parquet(samples, folder / SAMPLES, cls=Sample)
    (folder / JOB).write_bytes(pickle.dumps(job))
    listener = _Listener(watcher)
    end = run_streaming(
        _command(folder, limits.processes),
        listener,
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": str(max(1, num_threads() // limits.processes))},
        timeout_s=limits.timeout_s,
        silence_s=limits.silence_s,
        on_heartbeat=on_heartbeat,
        grace_s=limits.grace_s,
    )
    _raise_if_failed(folder, end, limits, listener.last)
    report: dict[str, Any] = json.loads((folder / REPORT).read_text())
    return report


def _command(folder: Path, processes: int) -> list[str]:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    return [*agent, "--nproc-per-node", str(processes), "-m", "training.step_process", str(folder.resolve())]


@dataclass
class _Listener:
    """Tells figures from log lines, and keeps the last of these for an error message."""

    watcher: Watcher
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def __call__(self, line: str) -> None:
        try:
            figures = json.loads(line) if line.startswith("{") else None
        except json.JSONDecodeError:
            figures = None
        if figures is not None:
            self.watcher.on_update(figures)
        elif line.strip():
            self.last.append(line)
            self.watcher.on_line(line)


def _raise_if_failed(folder: Path, end: ProcessEnd, limits: GroupLimits, last: Sequence[str]) -> None:
    if (folder / FAILED).is_file():
        said = json.loads((folder / FAILED).read_text())
        if said["kind"] == TrainingHalted.__name__:
            raise TrainingHalted(said["reason"], tuple(said["sample_ids"]))
        raise StepFailed(f"{said['kind']}: {said['reason']}")
    if end.ending == "exited" and end.exit_code == 0:
        return
    how = {
        "exited": f"ended with exit code {end.exit_code} (killed, or out of memory)",
        "timed_out": f"ran past training.timeout_s = {limits.timeout_s:g} and was stopped",
        "silent": f"printed nothing for training.silence_s = {limits.silence_s:g} and was stopped",
    }[end.ending]
    tail = "\n".join(f"  {line}" for line in last)
    raise StepLost(
        f"a training step of {limits.processes} processes {how} after {end.duration_s:.0f} s; nothing of it was kept. "
        f"Take it again; if it comes again, look at its last lines:\n{tail}"
    )
