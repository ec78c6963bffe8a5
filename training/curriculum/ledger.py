"""The state of every strategy: one row a task, and the fold that adds evidence to it.

`fold` is pure, exact under repetition (deduplicated by rollout id) and vectorised: 100,000 tasks fold in
milliseconds. Old evidence fades: counts are multiplied by `discount` once per policy version that has passed
(`per='version'`), or once per visit (`per='visit'`, as MoPPS does).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from training.curriculum.base import CurriculumError, Evidence, need

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aging:
    """How evidence fades: by `discount` in (0, 1] per policy version or per visit.

    Evidence older than `max_age` versions is refused as stale, so ids need not be remembered for longer.
    """

    discount: float = 1.0
    per: Literal["version", "visit"] = "version"
    max_age: int = 16

    def __post_init__(self) -> None:
        need(0 < self.discount <= 1, f"aging.discount is {self.discount}; want a number in (0, 1]")
        need(self.max_age >= 0, f"aging.max_age is {self.max_age}; want >= 0 policy versions")


@dataclass(frozen=True, slots=True, eq=False)
class TaskIndex:
    """The pool's tasks in order: ids, digests, and the number of each task's kin (an index into `kin_names`)."""

    ids: tuple[str, ...]
    digests: tuple[str, ...]
    kin_names: tuple[str, ...]
    kin_N: Ints
    rows: Mapping[str, int] = field(repr=False)

    @staticmethod
    def of(ids: Sequence[str], digests: Sequence[str], kin: Sequence[str]) -> TaskIndex:
        """Index tasks; `kin[i]` names what task i is akin to."""
        names = tuple(sorted(set(kin)))
        number = {name: i for i, name in enumerate(names)}
        kin_N = np.array([number[k] for k in kin], dtype=np.int64)
        return TaskIndex(tuple(ids), tuple(digests), names, kin_N, {t: i for i, t in enumerate(ids)})

    def row(self, task_id: str) -> int:
        """The row of a task. Raises CurriculumError on an unknown id."""
        row = self.rows.get(task_id)
        if row is None:
            raise CurriculumError(
                f"task {task_id!r} is not in the pool of {len(self.ids)} tasks; see `longbreath tasks list`"
            )
        return row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Per-task numbers, each of shape [N], all read-only.

    `passes` and `fails` are the faded counts as of `last_version` (-1: never visited). A visit is all evidence of
    one policy version; `batch_passes` of `batch_size` is the newest one; `streak_before` counts the visits just
    before it that were all-pass or all-fail. `rollouts`, `passed`, `tokens`, `probes` are plain totals.
    `probe_passes` of `probe_size` is the newest probe alone, at `probe_version` (-1: never probed).
    `retired` is the strategy's mark, last changed at version `changed_at`.
    """

    passes: Floats
    fails: Floats
    last_version: Ints
    batch_passes: Ints
    batch_size: Ints
    streak_before: Ints
    visits: Ints
    rollouts: Ints
    passed: Ints
    tokens: Ints
    probes: Ints
    probe_passes: Ints
    probe_size: Ints
    probe_version: Ints
    retired: Ints
    changed_at: Ints

    @staticmethod
    def empty(n: int) -> Columns:
        """N tasks never visited."""
        floats = {name: np.zeros(n) for name in ("passes", "fails")}
        unset = {name: np.full(n, -1) for name in ("last_version", "probe_version", "changed_at")}
        zeros = {f.name: np.zeros(n, dtype=np.int64) for f in dataclasses.fields(Columns)}
        return Columns(**(zeros | floats | unset))

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            getattr(self, f.name).flags.writeable = False

    def copies(self) -> dict[str, npt.NDArray[Any]]:
        """Writable copies of all columns by name."""
        return {f.name: getattr(self, f.name).copy() for f in dataclasses.fields(self)}

    @property
    def mixed(self) -> npt.NDArray[np.bool_]:
        """Whether each task's newest visit had both passes and fails. [N]"""
        return (self.batch_passes > 0) & (self.batch_passes < self.batch_size)

    @property
    def streak(self) -> Ints:
        """Newest consecutive visits that were all-pass or all-fail. [N]"""
        return np.where(self.mixed | (self.visits == 0), 0, self.streak_before + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Evidence that changed nothing, counted: repeats, too old, of no task here, of another edition of a task."""

    duplicate: int = 0
    stale: int = 0
    unknown_task: int = 0
    other_digest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """Everything a strategy knows. Immutable; equal JSON means equal state.

    `version` is the newest policy version folded (-1: none). `seen` holds the rollout ids folded, by version, as
    far back as evidence may still arrive. `scalars` are a strategy's own numbers.
    """

    tasks: TaskIndex
    columns: Columns
    version: int = -1
    seen: tuple[tuple[int, frozenset[str]], ...] = ()
    ignored: Ignored = Ignored()
    scalars: tuple[tuple[str, float], ...] = ()

    def scalar(self, name: str, default: float) -> float:
        """A strategy's own number, or its starting value."""
        return dict(self.scalars).get(name, default)


def _sift(
    state: State, evidence: Iterable[Evidence], max_age: int
) -> tuple[list[Evidence], Ignored, dict[int, set[str]]]:
    """Split evidence into what counts and what is ignored; returns the new ids by version too."""
    items = list(evidence)
    newest = max([state.version, *(e.policy_version for e in items)])
    seen = dict(state.seen)
    fresh: dict[int, set[str]] = {}
    counts = dataclasses.asdict(state.ignored)
    kept: list[Evidence] = []
    for item in items:
        row = state.tasks.rows.get(item.task_id)
        if newest - item.policy_version > max_age:
            counts["stale"] += 1
        elif row is None:
            counts["unknown_task"] += 1
        elif state.tasks.digests[row] != item.task_digest:
            counts["other_digest"] += 1
        elif any(item.rollout_id in ids for ids in (*seen.values(), *fresh.values())):
            counts["duplicate"] += 1
        else:
            fresh.setdefault(item.policy_version, set()).add(item.rollout_id)
            kept.append(item)
    return kept, Ignored(**counts), fresh


def _remember(state: State, fresh: dict[int, set[str]], oldest: int) -> tuple[tuple[int, frozenset[str]], ...]:
    merged = dict(state.seen)
    for version, ids in fresh.items():
        merged[version] = merged.get(version, frozenset()) | ids
    return tuple((v, merged[v]) for v in sorted(merged) if v >= oldest)


def fold(state: State, evidence: Sequence[Evidence], aging: Aging) -> tuple[State, Ints]:
    """Add evidence; returns the next state and the rows [M] that it touched, sorted.

    Folding the same evidence twice equals folding it once, and so does folding it in parts, in order.
    """
    kept, ignored, fresh = _sift(state, evidence, aging.max_age)
    columns = state.columns.copies()
    for version in sorted(fresh):
        _add_version(columns, state.tasks, [e for e in kept if e.policy_version == version], version, aging)
    newest = max([state.version, *fresh])
    after = dataclasses.replace(
        state,
        columns=Columns(**columns),
        version=newest,
        seen=_remember(state, fresh, newest - aging.max_age),
        ignored=ignored,
    )
    touched = np.unique(np.array([state.tasks.rows[e.task_id] for e in kept], dtype=np.int64))
    return after, touched


def _add_version(
    columns: dict[str, npt.NDArray[Any]], tasks: TaskIndex, items: list[Evidence], version: int, aging: Aging
) -> None:
    rows_E = np.array([tasks.rows[e.task_id] for e in items], dtype=np.int64)
    rows, inverse = np.unique(rows_E, return_inverse=True)

    def summed(values: Iterable[float]) -> npt.NDArray[Any]:
        return np.bincount(inverse, weights=np.fromiter(values, dtype=np.float64), minlength=len(rows))

    size = np.bincount(inverse, minlength=len(rows))
    passes = summed(float(e.passed) for e in items)
    c = columns
    c["rollouts"][rows] += size
    c["passed"][rows] += passes.astype(np.int64)
    c["tokens"][rows] += summed(e.tokens for e in items).astype(np.int64)
    c["probes"][rows] += summed(float(e.kind == "probe") for e in items).astype(np.int64)
    _add_visit(c, rows, passes, size, version, aging)
    probe = np.array([e.kind == "probe" for e in items])
    if probe.any():
        _add_probe(c, rows_E[probe], np.array([e.passed for e in items])[probe], version)


def _add_probe(c: Mapping[str, npt.NDArray[Any]], rows_E: Ints, passed_E: npt.NDArray[np.bool_], version: int) -> None:
    rows, inverse = np.unique(rows_E, return_inverse=True)
    kept = c["probe_version"][rows] == version
    newer = version >= c["probe_version"][rows]
    size = np.bincount(inverse, minlength=len(rows))
    passes = np.bincount(inverse, weights=passed_E, minlength=len(rows)).astype(np.int64)
    for name, added in (("probe_passes", passes), ("probe_size", size)):
        c[name][rows] = np.where(newer, c[name][rows] * kept + added, c[name][rows])
    c["probe_version"][rows] = np.maximum(c["probe_version"][rows], version)


def _add_visit(
    c: Mapping[str, npt.NDArray[Any]], rows: Ints, passes: Floats, size: Ints, version: int, aging: Aging
) -> None:
    """Age the counts to `version`, then add. Late evidence of an older visit is itself aged and is no visit."""
    last = c["last_version"][rows]
    new, late = version > last, version < last
    gap = np.where(new & (last >= 0), version - last if aging.per == "version" else 1, 0)
    lateness = np.where(late, last - version if aging.per == "version" else 1, 0)
    fade, weight = aging.discount**gap, aging.discount**lateness
    c["passes"][rows] = c["passes"][rows] * fade + passes * weight
    c["fails"][rows] = c["fails"][rows] * fade + (size - passes) * weight

    was_mixed = (c["batch_passes"][rows] > 0) & (c["batch_passes"][rows] < c["batch_size"][rows])
    streak = np.where(was_mixed | (last < 0), 0, c["streak_before"][rows] + 1)
    c["streak_before"][rows] = np.where(new, streak, c["streak_before"][rows])
    kept = np.where(new, 0, 1)
    now = np.where(late, 0, 1)
    c["batch_passes"][rows] = c["batch_passes"][rows] * kept + passes.astype(np.int64) * now
    c["batch_size"][rows] = c["batch_size"][rows] * kept + size * now
    c["visits"][rows] += new
    c["last_version"][rows] = np.maximum(last, version)
