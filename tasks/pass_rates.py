"""What is known of each task's pass rate, what to roll out next, and how the evidence of an iteration is added.

The curriculum's state after iteration k is a manifest: the state before it with the iteration's evidence folded in,
and that evidence beside it. So the state is exact on resume, and every decision can be explained later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.rollout import GroupRequest
from environments.types import Group, Judged, TaskPool
from infra import records
from infra.manifest import Manifest
from tasks.settings import Named, in_order
from tasks.stage import Desk, Stage, Work
from training.curriculum.base import Decision, Evidence, Selection, Strategy, evidence_of
from training.curriculum.monitor import ZeroGradientReport, watch
from training.curriculum.pool import PoolChange, with_pool
from training.curriculum.saving import from_json, to_json
from training.curriculum.signal import AdvantageMode
from training.curriculum.strategies import build

if TYPE_CHECKING:
    from training.curriculum.ledger import State

SELECT = Stage(name="select", version=4, kind="selection")
FOLD = Stage(name="fold", version=3, kind="curriculum")
STATE, EVIDENCE = "state.json", "evidence.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    """How tasks are chosen. `strategy` is a name of `training.curriculum.strategies`.

    `settings` are that strategy's own, (name, number) pairs; true and false are 1 and 0. Its others keep their
    defaults; `longbreath curriculum show` tells them all. `tasks_per_iteration` groups of `group_size` rollouts an
    iteration. The alarm rings when the share of groups that carry gradient falls under `min_useful_share`, over as many
    iterations as hold `min_watched_rollouts` rollouts.
    """

    strategy: str = "posterior"
    tasks_per_iteration: int = 8
    group_size: int = 8
    min_useful_share: float = 0.4
    min_watched_rollouts: int = 32
    settings: Named = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", in_order(self.settings))
        self.build("std")  # what is unknown is refused now, not after the first benchmark
        if self.tasks_per_iteration < 1:
            raise ValueError(f"curriculum.tasks_per_iteration is {self.tasks_per_iteration}; want at least 1")
        if not 0 <= self.min_useful_share <= 1:
            raise ValueError(f"curriculum.min_useful_share is {self.min_useful_share}; want a share in [0, 1]")
        if self.min_watched_rollouts < 1:
            raise ValueError(f"curriculum.min_watched_rollouts is {self.min_watched_rollouts}; want at least 1")

    def build(self, advantage: AdvantageMode) -> Strategy:
        """The strategy, for a trainer of this advantage. Raises CurriculumError on an unknown name or setting."""
        return build(self.strategy, group_size=self.group_size, advantage=advantage, settings=dict(self.settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """What is known of a pool under a strategy: the artifact of the last fold (None: nothing yet)."""

    strategy: Strategy
    pool: TaskPool
    folded: Manifest | None

    def state(self, desk: Desk) -> State:
        """The strategy's state of this very pool: one that was folded on another edition of it is carried over."""
        return self._carried(desk)[0]

    def change(self, desk: Desk) -> PoolChange:
        """What became of the tasks since the last fold."""
        return self._carried(desk)[1]

    def _carried(self, desk: Desk) -> tuple[State, PoolChange]:
        if self.folded is None:
            state = self.strategy.start(self.pool)
        else:
            state = from_json(json.loads((desk.store.path(self.folded) / STATE).read_text()))
        return with_pool(state, self.pool)

    @property
    def parents(self) -> tuple[Manifest, ...]:
        """What a selection is made from."""
        return () if self.folded is None else (self.folded,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a strategy is asked within an iteration: `groups` to train on, or (None) what it must measure before.

    `refill` is 0, or says how often groups without gradient have been replaced so far.
    """

    policy_version: int
    iteration: int
    groups: int | None
    refill: int = 0

    @property
    def label(self) -> str:
        """For people: what its rollouts are for."""
        return "probe" if self.groups is None else "refill" if self.refill else "roll out"

    @property
    def prefix(self) -> str:
        """How the names of its groups begin: no two requests of a run share it."""
        kind = "p" if self.groups is None else f"r{self.refill}-" if self.refill else "i"
        return f"{kind}{self.iteration:03d}-"


def select(desk: Desk, curriculum: Curriculum, request: Request) -> Work:
    """Choose the work that is asked for."""

    def make(out: Path, scratch: Path) -> int:
        state, strategy, version = curriculum.state(desk), curriculum.strategy, request.policy_version
        seed = desk.seed * 100_003 + request.iteration + 1_000_003 * request.refill
        if request.groups is None:
            chosen = strategy.probes(state, policy_version=version, seed=seed)
        elif request.refill and (state.columns.last_version == version).all():  # there is no other task to draw
            chosen = Selection(strategy=strategy.name, policy_version=version, seed=seed, decisions=())
        else:
            chosen = strategy.select(state, request.groups, policy_version=version, seed=seed)
        out.write_bytes(records.to_json(chosen))
        return len(chosen.decisions)

    return Work(
        stage=SELECT,
        parents=curriculum.parents,
        section=[curriculum.strategy, curriculum.pool.digest, request],
        make=make,
        iteration=request.iteration,
        name="selection.json",
    )


def read_selection(desk: Desk, manifest: Manifest) -> Selection:
    """The selection of an artifact."""
    return records.from_json(Selection, desk.store.path(manifest).read_bytes())


def requests_of(selection: Selection, pool: TaskPool, *, prefix: str) -> tuple[GroupRequest, ...]:
    """The rollouts that a selection asks for."""
    tasks = {t.task_id: t for t in pool.tasks}
    return tuple(
        GroupRequest(group_id=f"{prefix}{number:03d}-{d.task_id}", task=tasks[d.task_id], size=d.group_size)
        for number, d in enumerate(selection.decisions)
    )


def fold(
    desk: Desk, curriculum: Curriculum, evidence: tuple[Evidence, ...], judged: Manifest, *, iteration: int
) -> Work:
    """Add an iteration's evidence (of the verdicts in `judged`) to what is known."""

    def make(out: Path, scratch: Path) -> int:
        out.mkdir()
        state = curriculum.strategy.fold(curriculum.state(desk), evidence)
        (out / STATE).write_text(json.dumps(to_json(state)))
        return records.write_parquet(evidence, out / EVIDENCE, cls=Evidence)

    return Work(
        stage=FOLD,
        parents=(*curriculum.parents, judged),
        section=[curriculum.pool.digest, curriculum.strategy, evidence],
        make=make,
        iteration=iteration,
        schema_version=records.schema_version(Evidence),
    )


def new_evidence(selection: Selection, groups: Iterable[Group], verdicts: Iterable[Judged]) -> tuple[Evidence, ...]:
    """What the groups of a selection tell about its tasks.

    Those that only measure tell it of the selection's policy version: they may have been done before, when the very
    same weights had another.
    """
    decisions = {d.task_id: d for d in selection.decisions}
    judged = list(verdicts)
    evidence: list[Evidence] = []
    for group in groups:
        decision = decisions[group.task_id]
        told = evidence_of(group, judged, kind=decision.kind)
        evidence += told if decision.trains else [replace(e, policy_version=selection.policy_version) for e in told]
    return tuple(evidence)


def zero_gradient(
    evidence: tuple[Evidence, ...],
    selection: Selection,
    config: CurriculumConfig,
    before: tuple[ZeroGradientReport, ...] = (),
) -> ZeroGradientReport:
    """Where the iteration's rollouts and tokens went. `before`: the run's earlier reports, which its alarm looks at."""
    return watch(
        evidence,
        selection,
        min_useful_share=config.min_useful_share,
        min_rollouts=config.min_watched_rollouts,
        before=before,
    )


def decision_rows(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """Decisions as a table for people."""
    return [
        {
            "task": d.task_id,
            "rollouts": d.group_size,
            "state": d.state,
            "pass rate": f"{d.mean:.2f} [{d.low:.2f}, {d.high:.2f}]",
            "why": d.why,
        }
        for d in decisions
    ]
