"""A finished run's folder, made of real artifacts: what the commands that look back read; and what README promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from environments.rollout import GroupRequest
from environments.types import Group, Judged, TaskPool, Trajectory, Usage, Verdict
from flows.config import RunConfig
from flows.home import Home, open_desk
from flows.overrides import with_flags
from flows.presets import preset
from infra import records
from infra.manifest import Manifest
from tasks.pass_rates import Curriculum, Request, fold, new_evidence, read_selection, requests_of, select
from tasks.pools import make_pools
from tasks.progress import Silent
from tasks.rollouts import GROUPS_FILE, read_groups
from tasks.stage import Desk, Stage, Work, perform

CONFIG = with_flags(
    preset("tiny"),
    ("pool.train_tasks=12", "pool.held_out_tasks=4", "curriculum.tasks_per_iteration=4", "curriculum.group_size=4"),
)

README = Path(__file__).parents[2] / "README.md"


def documented(command: str) -> set[str]:
    """The keys in the table's row of that command: names in backticks, outside brackets."""
    row = next(line for line in README.read_text().splitlines() if line.startswith("|") and f"`{command}`" in line)
    text = row.split("|")[2]
    while re.search(r"[\[{(][^\[\]{}()]*[\]})]", text):
        text = re.sub(r"[\[{(][^\[\]{}()]*[\]})]", "", text)
    return set(re.findall(r"`(\w+)`", text))


def a_run(root: Path, config: RunConfig = CONFIG, *, iterations: int = 2) -> TaskPool:
    """Do a run's selections and folds for real, with rollouts whose first half passes; the pool."""
    home = Home(root)
    with open_desk(home, config, Silent()) as desk:
        pool = make_pools(desk.workshop.suite(config.pool.suite), config.pool).train
        curriculum = Curriculum(strategy=config.strategy(), pool=pool, folded=None)
        made: list[Manifest] = []
        for number in range(iterations):
            wanted = config.curriculum.tasks_per_iteration
            ask = Request(policy_version=number, iteration=number, groups=wanted)
            chosen = perform(desk, select(desk, curriculum, ask))
            selection = read_selection(desk, chosen)
            requests = requests_of(selection, pool, prefix=f"i{number:03d}-")
            groups = [_group(r, number, num_passed=r.size // 2) for r in requests]
            verdicts = [_verdict(m) for g in groups for m in g.members]
            rollouts = _rollouts(desk, groups)
            judged = _judged(desk, rollouts, verdicts)
            evidence = new_evidence(selection, groups, verdicts)
            folded = perform(desk, fold(desk, curriculum, evidence, judged, iteration=number))
            curriculum = Curriculum(strategy=curriculum.strategy, pool=pool, folded=folded)
            made += [chosen, rollouts, judged, folded]
    (home.run(config.run_id) / "stages.jsonl").write_bytes(b"".join(records.to_json(m) + b"\n" for m in made))
    return pool


@dataclass
class Scripted:
    """A runner that selects, folds and keeps for real; of each group the first `passes(task_id)` rollouts pass.

    What would need a policy or a sandbox leaves an empty artifact; where `skips`, training leaves the weights as they
    are. `done` are the stages in order.
    """

    desk: Desk
    passes: Callable[[str], int]
    skips: bool = False
    done: list[Work] = field(default_factory=list)

    def __call__(self, work: Work) -> Manifest:
        """See `tasks.stage.Runner`."""
        self.done.append(work)
        if work.stage.name in ("select", "fold", "to_measure", "evaluate", "merge_rollouts"):
            return perform(self.desk, work)
        if work.stage.name == "roll_out":
            version = work.section[4]
            groups = [_group(r, version, num_passed=self.passes(r.task.task_id)) for r in work.section[3]]
            return _rollouts(self.desk, groups)
        if work.stage.name == "judge":
            groups = read_groups(self.desk, work.parents[0])
            return _judged(self.desk, work.parents[0], [_verdict(m) for g in groups for m in g.members])
        if work.stage.name == "train" and self.skips:
            return work.parents[0]
        return an_artifact(self.desk, f"{work.stage.name} {len(self.done)}")


def an_artifact(desk: Desk, text: str) -> Manifest:
    """A folder with a file that says `text`."""

    def make(out: Path, scratch: Path) -> int:
        out.mkdir()
        (out / "text").write_text(text)
        return 1

    return perform(desk, Work(stage=Stage(name="given", version=1, kind="given"), parents=(), section=text, make=make))


def stored(desk: Desk, request: GroupRequest, version: int, *, passed: bool) -> tuple[Manifest, Manifest]:
    """The artifacts of one group under a policy version, all of it passed or failed: rollouts and verdicts."""
    group = _group(request, version, num_passed=request.size if passed else 0)
    rollouts = _rollouts(desk, [group])
    return rollouts, _judged(desk, rollouts, [_verdict(m) for m in group.members])


def _group(request: GroupRequest, version: int, *, num_passed: int) -> Group:
    usage = Usage(turns=0, calls=1, prompt_tokens=5, completion_tokens=5, wall_s=0.1, sandbox_s=0.0)
    members = tuple(
        Trajectory(
            rollout_id=f"{request.group_id}-{index}",
            group_id=request.group_id,
            index=index,
            attempt=0,
            task_id=request.task.task_id,
            status="completed",
            fault="",
            chains=(),
            turns=(),
            final_payload="done" if index < num_passed else None,
            usage=usage,
            policy_versions=(version, version),
            final_state_uri="",
        )
        for index in range(request.size)
    )
    task = request.task
    return Group(
        group_id=request.group_id,
        task_id=task.task_id,
        task_digest=task.digest,
        requested_size=request.size,
        members=members,
    )


def _verdict(member: Trajectory) -> Judged:
    passed = member.final_payload == "done"
    result = Verdict(gates=(), scores=(), reward=float(passed), passed=passed)
    return Judged(rollout_id=member.rollout_id, group_id=member.group_id, task_id=member.task_id, result=result)


def _rollouts(desk: Desk, groups: list[Group]) -> Manifest:
    def make(out: Path, scratch: Path) -> int:
        (out / "states").mkdir(parents=True)
        return records.write_parquet(groups, out / GROUPS_FILE, cls=Group)

    stage, schema = Stage(name="roll_out", version=1, kind="rollouts"), records.schema_version(Group)
    return perform(desk, Work(stage=stage, parents=(), section=groups, make=make, schema_version=schema))


def _judged(desk: Desk, rollouts: Manifest, verdicts: list[Judged]) -> Manifest:
    def make(out: Path, scratch: Path) -> int:
        return records.write_parquet(verdicts, out, cls=Judged)

    stage, schema = Stage(name="judge", version=1, kind="judged"), records.schema_version(Judged)
    given = {"stage": stage, "parents": (rollouts,), "section": verdicts, "schema_version": schema}
    return perform(desk, Work(**given, make=make, name="judged.parquet"))
