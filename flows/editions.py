"""Which edition of the task pool each iteration of a run chose from.

A run may be resumed after tasks were added, removed or edited. What was done stays done, on the tasks it was done
with; from the first unfinished iteration on the run chooses from the new pool, and what is known of tasks that are
the same in both is carried over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from environments.types import TaskPool
from infra import records

SCHEMA_VERSION = 1
EDITIONS = "pools.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """A pool, and the first iteration that chose from it."""

    first_iteration: int
    pool: TaskPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Editions:
    """A run's editions in order. `salt` tells a fresh run from its forerunners; `done` counts finished iterations."""

    salt: str
    done: int
    editions: tuple[Edition, ...]

    def at(self, number: int) -> TaskPool:
        """The pool of an iteration."""
        return next(e.pool for e in reversed(self.editions) if e.first_iteration <= number)

    @property
    def every_task(self) -> TaskPool:
        """All that some iteration could choose from, each task as it was last."""
        last = {t.task_id: t for e in self.editions for t in e.pool.tasks}
        return replace(self.editions[-1].pool, tasks=tuple(last.values()))


def open_editions(folder: Path, pool: TaskPool, salt: str) -> Editions:
    """The editions noted in a run's folder, the present pool among them."""
    path = folder / EDITIONS
    kept = records.from_json(Editions, path.read_bytes(), where=str(path)) if path.exists() else None
    if kept is None or kept.salt != salt:
        kept = Editions(salt=salt, done=0, editions=(Edition(first_iteration=0, pool=pool),))
    elif kept.editions[-1].pool.digest != pool.digest:
        before = tuple(e for e in kept.editions if e.first_iteration < kept.done)
        kept = replace(kept, editions=(*before, Edition(first_iteration=kept.done, pool=pool)))
    _write(folder, kept)
    return kept


def note_iteration(folder: Path, editions: Editions, number: int) -> None:
    """Iteration `number` is finished: a pool edited from now on is for later ones."""
    _write(folder, replace(editions, done=max(editions.done, number + 1)))


def _write(folder: Path, editions: Editions) -> None:
    made = folder / f".{EDITIONS}"
    made.write_bytes(records.to_json(editions))
    made.replace(folder / EDITIONS)
