"""The state of every strategy: one row a task, and the fold that adds evidence to it.

`fold` is pure, exact under repetition (deduplicated by rollout id) and vectorised: 100,000 tasks fold in
milliseconds. How old evidence fades is the strategy's affair (`Fading`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from training.curriculum.base import CurriculumError, Evidence, need
from training.curriculum.features import Kinship
from training.curriculum.prior import Learned

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TaskIndex:
    """The pool's tasks in order: ids, digests, and what they have in common."""

    ids: tuple[str, ...]
    digests: tuple[str, ...]
    kinship: Kinship
    rows: Mapping[str, int] = field(repr=False)

    @staticmethod
    def of(ids: Sequence[str], digests: Sequence[str], features: Sequence[Sequence[str]]) -> TaskIndex:
        """Index tasks; `features[i]` are those of task i."""
        return TaskIndex(tuple(ids), tuple(digests), Kinship.of(features), {t: i for i, t in enumerate(ids)})

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

    `passes` and `fails` are pseudo-counts as of `last_version` (-1: never visited), faded as the strategy says; by
    then its features had moved by `shift`, and its lessons added `gain`, both in logits. A visit is all evidence of
    one policy version; `batch_passes` of `batch_size` is the newest one; `streak_before` counts the visits just
    before it that were all-pass or all-fail. `rollouts`, `passed`, `tokens`, `probes` are plain totals.
    `probe_passes` of `probe_size` is the newest probe alone, at `probe_version` (-1: never probed). `retired` is the
    strategy's mark (0 or 1), last changed at version `changed_at` (-1: never).
    """

    passes: Floats
    fails: Floats
    shift: Floats
    gain: Floats
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
        floats = {name: np.zeros(n) for name in ("passes", "fails", "shift", "gain")}
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

    `strategy` names who folds it. `version` is the newest policy version folded (-1: none). `seen` holds the
    rollout ids folded, by version, as far back as evidence may still arrive. `learned` is what they taught beyond
    single tasks, where a strategy learns that; `scalars` are a strategy's own numbers.
    """

    strategy: str
    tasks: TaskIndex
    columns: Columns
    learned: Learned
    version: int = -1
    seen: tuple[tuple[int, frozenset[str]], ...] = ()
    ignored: Ignored = Ignored()
    scalars: tuple[tuple[str, float], ...] = ()

    def scalar(self, name: str, default: float) -> float:
        """A strategy's own number, or its starting value."""
        return dict(self.scalars).get(name, default)


class Fading(Protocol):
    """How old counts stand at a later policy version."""

    @property
    def max_age(self) -> int:
        """Evidence older than this many versions is refused as stale, so ids need not be remembered longer."""
        ...

    def advance(self, state: State, rows: Ints, version: int) -> tuple[Floats, Floats]:
        """The `passes` and `fails` of `rows` [M] as they stand at `version`, before that version's evidence."""
        ...

    def late_weight(self, lateness: Ints) -> Floats:
        """What evidence counts that arrives for a visit `lateness` versions before the task's newest one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Aging:
    """Counts fade by `discount` in (0, 1] once per policy version, or once per visit (as in MoPPS)."""

    discount: float = 1.0
    per: Literal["version", "visit"] = "version"
    max_age: int = 16

    def __post_init__(self) -> None:
        need(0 < self.discount <= 1, f"aging.discount is {self.discount}; want a number in (0, 1]")
        need(self.max_age >= 0, f"aging.max_age is {self.max_age}; want >= 0 policy versions")

    def advance(self, state: State, rows: Ints, version: int) -> tuple[Floats, Floats]:
        """See Fading."""
        c = state.columns
        gap = np.maximum(version - c.last_version[rows], 0)
        fade = self.late_weight(np.where(c.last_version[rows] >= 0, gap, 0))
        return c.passes[rows] * fade, c.fails[rows] * fade

    def now(self, state: State, version: int) -> tuple[Floats, Floats]:
        """All counts as they are read at `version`: where visits fade, reading is no visit. [N], [N]"""
        if self.per == "visit":
            return state.columns.passes, state.columns.fails
        return self.advance(state, np.arange(len(state.tasks.ids)), version)

    def late_weight(self, lateness: Ints) -> Floats:
        """See Fading."""
        steps = lateness if self.per == "version" else np.minimum(lateness, 1)
        return np.asarray(self.discount**steps, dtype=np.float64)


Seen = tuple[tuple[int, frozenset[str]], ...]


def _sift(state: State, evidence: Sequence[Evidence], max_age: int) -> tuple[dict[int, list[Evidence]], Ignored, Seen]:
    """Split evidence into what counts, by policy version, and how much is ignored; and the ids seen, repeats too."""
    newest = max([state.version, *(e.policy_version for e in evidence)])
    told = {e.rollout_id for e in evidence}
    known = set().union(*(told & ids for _, ids in state.seen))  # in time of what is told, not of all that was seen
    counts = dataclasses.asdict(state.ignored)
    fresh: dict[int, list[Evidence]] = {}
    again: dict[int, set[str]] = {}
    for item in evidence:
        row = state.tasks.rows.get(item.task_id)
        if newest - item.policy_version > max_age:
            counts["stale"] += 1
        elif row is None:
            counts["unknown_task"] += 1
        elif state.tasks.digests[row] != item.task_digest:
            counts["other_digest"] += 1
        elif item.rollout_id in known:
            counts["duplicate"] += 1
            # What is told again is remembered from then on: weights that stay the same may be asked of for long.
            again.setdefault(item.policy_version, set()).add(item.rollout_id)
        else:
            known.add(item.rollout_id)
            fresh.setdefault(item.policy_version, []).append(item)
    return fresh, Ignored(**counts), _joined(state.seen, again)


def _joined(seen: Seen, more: Mapping[int, set[str]]) -> Seen:
    ids = dict(seen)
    for version, added in more.items():
        ids[version] = ids.get(version, frozenset()) | added
    return tuple((version, ids[version]) for version in sorted(ids))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visit:
    """One policy version's evidence as it was folded: rows [M], the state before, and counts as they then stood."""

    version: int
    rows: Ints
    before: State
    passes: Floats
    fails: Floats


def fold(state: State, evidence: Sequence[Evidence], fading: Fading) -> tuple[State, tuple[Visit, ...]]:
    """Add evidence; returns the next state and the visits it consisted of, by version.

    Evidence folded before (by rollout id), too old, or of no task here changes only `ignored`.
    """
    fresh, ignored, seen = _sift(state, evidence, fading.max_age)
    after = dataclasses.replace(state, ignored=ignored, seen=seen)
    visits = []
    for version in sorted(fresh):
        rows = np.unique(np.array([state.tasks.rows[e.task_id] for e in fresh[version]], dtype=np.int64))
        passes, fails = fading.advance(after, rows, version)
        visit = Visit(version=version, rows=rows, before=after, passes=passes, fails=fails)
        after = _add(visit, fresh[version], fading)
        visits.append(visit)
    return after, tuple(visits)


def _add(visit: Visit, items: list[Evidence], fading: Fading) -> State:
    state, rows, version = visit.before, visit.rows, visit.version
    place_E = np.searchsorted(rows, [state.tasks.rows[e.task_id] for e in items])
    passed_E = np.array([e.passed for e in items])
    probe_E = np.array([e.kind == "probe" for e in items])
    tokens_E = np.array([e.tokens for e in items])

    def count(weights_E: npt.NDArray[Any]) -> Ints:
        return np.bincount(place_E, weights=weights_E, minlength=len(rows)).astype(np.int64)

    size, passes = count(np.ones(len(items))), count(passed_E)
    c = state.columns.copies()
    for name, added in (
        ("rollouts", size),
        ("passed", passes),
        ("tokens", count(tokens_E)),
        ("probes", count(probe_E)),
    ):
        c[name][rows] += added
    _add_visit(c, rows, passes, size, version)
    _add_probe(c, rows, count(passed_E & probe_E), count(probe_E), version)
    weight = fading.late_weight(np.maximum(state.columns.last_version[rows] - version, 0))
    c["passes"][rows] = visit.passes + passes * weight
    c["fails"][rows] = visit.fails + (size - passes) * weight
    newest = max(state.version, version)
    seen = _joined(state.seen, {version: {e.rollout_id for e in items}})
    recent = tuple((v, ids) for v, ids in seen if v >= newest - fading.max_age)
    return dataclasses.replace(state, columns=Columns(**c), version=newest, seen=recent)


def _add_visit(c: Mapping[str, npt.NDArray[Any]], rows: Ints, passes: Ints, size: Ints, version: int) -> None:
    """A visit is all evidence of one version: more of the same adds to it, late evidence of an older one is none."""
    last = c["last_version"][rows]
    new, late = version > last, version < last
    was_mixed = (c["batch_passes"][rows] > 0) & (c["batch_passes"][rows] < c["batch_size"][rows])
    streak = np.where(was_mixed | (last < 0), 0, c["streak_before"][rows] + 1)
    c["streak_before"][rows] = np.where(new, streak, c["streak_before"][rows])
    for name, added in (("batch_passes", passes), ("batch_size", size)):
        c[name][rows] = np.where(new, 0, c[name][rows]) + np.where(late, 0, added)
    c["visits"][rows] += new
    c["last_version"][rows] = np.maximum(last, version)


def _add_probe(c: Mapping[str, npt.NDArray[Any]], rows: Ints, passes: Ints, size: Ints, version: int) -> None:
    """The newest probe stands alone; probes of one version add up."""
    last = c["probe_version"][rows]
    new = (size > 0) & (version > last)
    counts = (size > 0) & (version >= last)
    for name, added in (("probe_passes", passes), ("probe_size", size)):
        c[name][rows] = np.where(new, 0, c[name][rows]) + np.where(counts, added, 0)
    c["probe_version"][rows] = np.where(new, version, last)
