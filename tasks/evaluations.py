"""Pass rates measured apart from training: an evaluation is done once and found again wherever the same is asked.

An evaluation is a group of rollouts that only measures. What decides it is its content: the digests of the weights and
of the task, how completions are drawn and harnessed, and how many rollouts. Its rollouts are named by that, so their
random numbers follow from it too. Who asked, at which iteration and policy version, decides nothing: weights that a
skipped step left as they were are not measured twice, and another run of the same store finds what this one did.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from environments.gates.judge import GateConfig
from environments.rollout import GroupRequest
from environments.types import Group
from infra import records
from infra.digests import digest_folder, digest_of
from infra.engines.base import Sampling
from infra.manifest import Manifest
from infra.store import StoreError
from tasks.rollouts import GROUPS_FILE, RolloutConfig, RolloutPlan, read_groups
from tasks.stage import Desk, Make, Stage, Work

TO_MEASURE = Stage(name="to_measure", version=1, kind="to_measure")
EVALUATE = Stage(name="evaluate", version=1, kind="evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All that decides what `size` rollouts of a task show of some weights. `engine` is the kind of engine."""

    weights_digest: str
    task_digest: str
    size: int
    sampling: Sampling
    rollouts: RolloutConfig
    gates: GateConfig
    engine: str


def evaluations_of(
    desk: Desk, plan: RolloutPlan, *, config: RolloutConfig, gates: GateConfig
) -> tuple[RolloutPlan, dict[str, Evaluation]]:
    """The plan with each group named by its evaluation, and the evaluations by these names."""
    weights = digest_folder(plan.policy.folder(desk))
    evaluations: dict[str, Evaluation] = {}
    requests: list[GroupRequest] = []
    for request in plan.requests:
        evaluation = Evaluation(
            weights_digest=weights,
            task_digest=request.task.digest,
            size=request.size,
            sampling=plan.sampling,
            rollouts=config,
            gates=gates,
            engine=desk.workshop.engine_config.kind,
        )
        group_id = f"rate-{digest_of(evaluation)[:16]}-{request.task.task_id}"
        evaluations[group_id] = evaluation
        requests.append(replace(request, group_id=group_id))
    return replace(plan, requests=tuple(requests)), evaluations


def to_measure(desk: Desk, chosen: Manifest, evaluations: Mapping[str, Evaluation], *, iteration: int | None) -> Work:
    """Which of a selection's evaluations this run has to do itself, because nobody has done them yet.

    Decided once: a resumed run would else take its own rollouts for found ones, and not count what it spent.
    """

    def make(out: Path, scratch: Path) -> int:
        missing = [name for name, e in evaluations.items() if not is_kept(desk, e)]
        out.write_text(json.dumps(missing))
        return len(missing)

    return Work(
        stage=TO_MEASURE,
        parents=(chosen,),
        section=[desk.run_id, evaluations],
        make=make,
        iteration=iteration,
        name="to_measure.json",
    )


def read_to_measure(desk: Desk, manifest: Manifest) -> frozenset[str]:
    """The group ids of that artifact."""
    return frozenset(json.loads(desk.store.path(manifest).read_text()))


def is_kept(desk: Desk, evaluation: Evaluation) -> bool:
    """Whether the store has the evaluation, and its content verifies."""
    return desk.store.find(kept(evaluation).key(desk)) is not None


def kept(evaluation: Evaluation) -> Work:
    """An evaluation that the store has (see `is_kept`): found, never done. Raises StoreError if lost meanwhile."""

    def make(out: Path, scratch: Path) -> NoReturn:
        raise StoreError("an evaluation that was in the store a moment ago is lost; run the same command again")

    # No parents: they would be the policy and the selection of one iteration, and the evaluation is of no single one.
    return Work(
        stage=EVALUATE,
        parents=(),
        section=evaluation,
        make=make,
        schema_version=records.schema_version(Group),
    )


def keep(desk: Desk, rollouts: Manifest, evaluations: Mapping[str, Evaluation]) -> tuple[Work, ...]:
    """Put each group of some rollouts into the store as an evaluation: a folder as those of rollouts are.

    Groups that lost members by faults of ours are left out: they are less than was asked for.
    """
    states = desk.store.path(rollouts) / "states"
    groups = [g for g in read_groups(desk, rollouts) if g.complete]
    return tuple(replace(kept(evaluations[g.group_id]), make=_writer(g, states)) for g in groups)


def _writer(group: Group, states: Path) -> Make:
    def make(out: Path, scratch: Path) -> int:
        (out / "states").mkdir(parents=True)
        for name in (Path(m.final_state_uri).name for m in group.members):
            if (states / name).is_file():
                shutil.copyfile(states / name, out / "states" / name)
        return records.write_parquet([group], out / GROUPS_FILE, cls=Group)

    return make
