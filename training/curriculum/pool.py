"""From a task pool to a state, and what happens when the pool changes in mid-run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from environments.types import TaskPool
from training.curriculum.base import need
from training.curriculum.features import features_of
from training.curriculum.ledger import Columns, State, TaskIndex
from training.curriculum.prior import Learned, kin_sums


def _index(pool: TaskPool) -> TaskIndex:
    need(len(pool.tasks) > 0, f"pool {pool.name!r} is empty; a curriculum needs at least one task")
    need(
        pool.split == "train",
        f"pool {pool.name!r} is the {pool.split} split; training on it would spoil the benchmark. Give the train split",
    )
    return TaskIndex.of(
        [t.task_id for t in pool.tasks], [t.digest for t in pool.tasks], [features_of(t) for t in pool.tasks]
    )


def start(pool: TaskPool, strategy: str) -> State:
    """A strategy's state of a pool without evidence. Raises CurriculumError on an empty or held-out pool."""
    tasks = _index(pool)
    learned = Learned.nothing(len(tasks.kinship.names))
    return State(strategy=strategy, tasks=tasks, columns=Columns.empty(len(pool.tasks)), learned=learned)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """What a new pool did to the state. Edited tasks (same id, other digest) lost their evidence."""

    kept: int
    added: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]

    def lines(self) -> tuple[str, ...]:
        """For the log and the report; empty when nothing changed."""
        parts = (
            ("new, they start from their kin", self.added),
            ("removed, their evidence is dropped", self.removed),
            ("edited, their evidence is dropped and they start from their kin", self.edited),
        )
        return tuple(
            f"{len(ids)} task(s) {what}: {', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}"
            for what, ids in parts
            if ids
        )


def with_pool(state: State, pool: TaskPool) -> tuple[State, PoolChange]:
    """Carry a state over to another edition of the pool: evidence follows (task id, digest), nothing else."""
    tasks = _index(pool)
    old = state.tasks
    source = [old.rows.get(t) for t in tasks.ids]
    same = [(new, row) for new, row in enumerate(source) if row is not None and old.digests[row] == tasks.digests[new]]
    edited = tuple(
        t
        for t, d, row in zip(tasks.ids, tasks.digests, source, strict=True)
        if row is not None and old.digests[row] != d
    )
    change = PoolChange(
        kept=len(same),
        added=tuple(t for t, row in zip(tasks.ids, source, strict=True) if row is None),
        removed=tuple(t for t in old.ids if t not in tasks.rows),
        edited=edited,
    )
    new_rows, old_rows = (np.array([pair[i] for pair in same], dtype=np.int64) for i in (0, 1))
    columns = Columns.empty(len(tasks.ids)).copies()
    for name, values in columns.items():
        values[new_rows] = getattr(state.columns, name)[old_rows]
    learned = state.learned.carried(old.kinship, tasks.kinship)
    # A feature that is gone takes its movement along; no task has moved by that.
    was = kin_sums(state.learned.shift_F, old.kinship)[old.kinship.kin_N[old_rows]]
    columns["shift"][new_rows] += kin_sums(learned.shift_F, tasks.kinship)[tasks.kinship.kin_N[new_rows]] - was
    return dataclasses.replace(state, tasks=tasks, columns=Columns(**columns), learned=learned), change
