"""What a finished or running run has left: read from its own notes and the store, without any engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.types import Group, Judged, Trajectory
from flows.home import STEP, Home
from flows.noted import STAGES
from flows.overrides import ConfigError
from infra import records
from infra.manifest import Manifest
from tasks.rollouts import GROUPS_FILE


def is_single_step(run_id: str) -> bool:
    """Whether `longbreath step` made this run: it has no result of its own, and is no fine-tuning run to resume."""
    return run_id.rpartition("-")[0] == STEP


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
    """Every judged trajectory of a run, in order.

    Benchmarks of two policies hold rollouts of one id, for they meet the same tasks with the same random numbers: so a
    verdict belongs to the trajectory of the artifact that it was made from.
    """
    notes, store = RunNotes(home, run_id), home.store
    rollouts = {m.key: m for m in notes.manifests("rollouts")}
    out: list[tuple[Trajectory, Judged]] = []
    for judged in notes.manifests("judged"):
        verdicts = {j.rollout_id: j for j in store.read_records(Judged, judged)}
        (made_from,) = (rollouts[key] for key in judged.parents if key in rollouts)
        groups = records.read_parquet(Group, store.path(made_from) / GROUPS_FILE)
        out += [(t, verdicts[t.rollout_id]) for g in groups for t in g.members]
    return out


def find_trajectory(
    home: Home, run_id: str, rollout_id: str, *, policy_version: int | None = None
) -> tuple[Trajectory, Judged]:
    """One trajectory: of a policy version, or of the newest that has it. Raises ConfigError when there is none."""
    found = [pair for pair in trajectories_of(home, run_id) if pair[0].rollout_id == rollout_id]
    wanted = [pair for pair in found if policy_version in (None, pair[0].policy_versions[1])]
    if not wanted:
        which = "" if policy_version is None or not found else f" of policy {policy_version}"
        see = f"see `longbreath trajectory show {run_id}`"
        raise ConfigError(f"run {run_id} has no rollout {rollout_id!r}{which}; {see}")
    return wanted[-1]
