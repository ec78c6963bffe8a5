"""The judge stage: every trajectory through the gates, each in a fresh box."""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.gates.judge import GateConfig, judge
from environments.suites.base import Suite
from environments.types import Group, Judged, TaskPool, TaskSpec, Trajectory
from infra import records
from infra.manifest import Manifest
from tasks.rollouts import read_groups
from tasks.stage import Desk, Stage, Work

JUDGE = Stage(name="judge", version=1, kind="judged")


def judge_rollouts(
    desk: Desk,
    rollouts: Manifest,
    pool: TaskPool,
    *,
    gates: GateConfig,
    concurrency: int,
    iteration: int | None,
) -> Work:
    """Judge all members of a rollouts artifact: one `Judged` a row, in the order of the groups."""

    def make(out: Path, scratch: Path) -> int:
        groups = read_groups(desk, rollouts)
        states = desk.store.path(rollouts) / "states"
        suite = desk.workshop.suite(pool.tasks[0].suite)
        room = _Room(desk, suite, {t.task_id: t for t in pool.tasks}, states, gates, concurrency)
        desk.progress.begin("judge", iteration=iteration, total=sum(len(g.members) for g in groups))
        return records.write_parquet(desk.workshop.run(room.judge_all, groups), out, cls=Judged)

    return Work(
        stage=JUDGE,
        parents=(rollouts,),
        section=[gates, pool.digest],
        make=make,
        iteration=iteration,
        name="judged.parquet",
        schema_version=records.schema_version(Judged),
    )


class _Room:
    def __init__(
        self, desk: Desk, suite: Suite, tasks: dict[str, TaskSpec], states: Path, gates: GateConfig, concurrency: int
    ) -> None:
        self._desk, self._suite, self._tasks, self._states, self._gates = desk, suite, tasks, states, gates
        self._boxes = desk.workshop.boxes
        self._slots = asyncio.Semaphore(concurrency)

    async def judge_all(self, groups: list[Group]) -> list[Judged]:
        return list(await asyncio.gather(*(self._judge(m) for g in groups for m in g.members)))

    async def _judge(self, trajectory: Trajectory) -> Judged:
        async with self._slots:
            path = self._states / Path(trajectory.final_state_uri).name
            state = path.read_bytes() if path.exists() else None
            task = self._tasks[trajectory.task_id]
            judged = await judge(trajectory, task, self._suite, self._boxes, state, self._gates)
        self._desk.progress.advance()
        return judged


def read_judged(desk: Desk, manifest: Manifest) -> list[Judged]:
    """The verdicts of a judged artifact."""
    return records.read_parquet(Judged, desk.store.path(manifest))
