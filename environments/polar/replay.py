"""Recordings from a folder of logs: after a crash, for an audit, or as Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from environments.polar.base import Recording
from environments.polar.log_format import Entry, LogFile, log_files, read_log
from environments.polar.logged import LoggedRollout, read_rollouts
from environments.polar.recording import build_recording
from environments.types import CallRecord, Chain
from infra.records import write_parquet


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFolder:
    """What a folder of logs holds. `rollouts` in order of first appearance."""

    files: tuple[LogFile, ...]
    rollouts: dict[str, LoggedRollout]

    @property
    def torn_bytes(self) -> int:
        """Bytes at the ends of files that a killed writer left behind."""
        return sum(f.torn_bytes for f in self.files)

    @property
    def damaged(self) -> tuple[str, ...]:
        """Spans in the middle of files that are not what was written."""
        return tuple(f"{f.path}: bytes {a} to {b}" for f in self.files for a, b in f.damaged)


def open_logs(folder: Path) -> LogFolder:
    """Read all logs of a folder. Raises FileNotFoundError when there is none, LogDamaged on another format."""
    paths = log_files(folder)
    if not paths:
        raise FileNotFoundError(f"{folder} has no recorder logs; give the folder that the recorder wrote to")
    files = tuple(read_log(path) for path in paths)
    entries: list[Entry] = [entry for file in files for entry in file.entries]
    return LogFolder(files=files, rollouts=read_rollouts(entries))


def replay(folder: Path, rollout_id: str) -> Recording:
    """The recording of one rollout, as `close` gave it or as a crash left it. Raises KeyError when unknown."""
    rollouts = open_logs(folder).rollouts
    if rollout_id not in rollouts:
        known = ", ".join(list(rollouts)[:5])
        raise KeyError(f"{folder} has no rollout {rollout_id!r}; it has {len(rollouts)}, such as {known}")
    return build_recording(rollouts[rollout_id])


def to_parquet(folder: Path, target: Path) -> tuple[int, int]:
    """Write `calls.parquet` and `chains.parquet` of all rollouts below `target`; how many rows each has."""
    recordings = [build_recording(rollout) for rollout in open_logs(folder).rollouts.values()]
    target.mkdir(parents=True, exist_ok=True)
    calls = (call for recording in recordings for call in recording.calls)
    chains = (chain for recording in recordings for chain in recording.chains)
    num_calls = write_parquet(calls, target / "calls.parquet", cls=CallRecord)
    return num_calls, write_parquet(chains, target / "chains.parquet", cls=Chain)
