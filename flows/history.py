"""What a finished or running run has left: read from its own notes and the store, without any engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.types import Group, Judged, Trajectory
from flows.home import Home
from flows.noted import STAGES
from flows.overrides import ConfigError
from infra import records
from infra.manifest import Manifest
from tasks.rollouts import GROUPS_FILE


@dataclass(frozen=True, slots=True)
class RunNotes:
    """A run's folder: `config.json`, `attempts.json`, `stages.jsonl` (manifests in order), `result.json`."""

    home: Home
    run_id: str

    def __post_init__(self) -> None:
        if not (self.folder / "config.json").exists():
            known = ", ".join(self.home.run_ids()[:5]) or "none yet"
            raise ConfigError(f"no run {self.run_id!r} below {self.home.root}; there are: {known}")

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.home.run(self.run_id)

    def manifests(self, kind: str) -> list[Manifest]:
        """The run's artifacts of one kind, in the order they were made, each once."""
        return list({m.key: m for m in self.all_manifests() if m.kind == kind}.values())

    def all_manifests(self) -> list[Manifest]:
        """Every artifact that the run made or used, as it noted them; none once they have expired."""
        path = self.folder / STAGES
        return records.read_jsonl(Manifest, path) if path.exists() else []

    def result(self) -> dict[str, Any] | None:
        """What the finished run reported, None while it is unfinished."""
        path = self.folder / "result.json"
        result: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return result


def trajectories_of(home: Home, run_id: str) -> list[tuple[Trajectory, Judged]]:
    """Every judged trajectory of a run, in order."""
    notes, store = RunNotes(home, run_id), home.store
    groups = [g for m in notes.manifests("rollouts") for g in records.read_parquet(Group, store.path(m) / GROUPS_FILE)]
    verdicts = {j.rollout_id: j for m in notes.manifests("judged") for j in store.read_records(Judged, m)}
    return [(t, verdicts[t.rollout_id]) for g in groups for t in g.members if t.rollout_id in verdicts]


def find_trajectory(home: Home, run_id: str, rollout_id: str) -> tuple[Trajectory, Judged]:
    """One trajectory. Raises ConfigError when the run has none of that id."""
    for trajectory, judged in trajectories_of(home, run_id):
        if trajectory.rollout_id == rollout_id:
            return trajectory, judged
    raise ConfigError(f"run {run_id} has no rollout {rollout_id!r}; see `longbreath trajectory show {run_id}`")
