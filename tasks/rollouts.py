"""The rollout stage: a selection and a policy in; groups of trajectories and the files they left out."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from environments.gates.judge import GateConfig, check_prefix
from environments.harnesses.base import Harness
from environments.harnesses.command import CommandHarness, CommandSpec
from environments.harnesses.equipped_boxes import boxes_for
from environments.harnesses.specs import SPECS
from environments.rollout import GroupRequest, RolloutRoom, roll_out_groups
from environments.types import Group, Trajectory
from infra import records
from infra.engines.base import EngineError, Sampling
from infra.manifest import Manifest
from tasks.policies import Policy
from tasks.stage import Desk, Stage, Work

SCHEMA_VERSION = 1

ROLL_OUT = Stage(name="roll_out", version=2, kind="rollouts")
MERGE = Stage(name="merge_rollouts", version=1, kind="rollouts")
GROUPS_FILE = "groups.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """How rollouts are done. `max_tokens` caps one completion; `concurrency` is boxes open at once.

    `docker_image` makes sandboxes containers of that image (with bash and Python 3.9 or later; name it by digest, for
    what a tag means may change), by the engine of DOCKER_HOST; without one they are made by bubblewrap.
    `harness_folder` is where infra/harnesses/install.sh put the npm harnesses. When more than `max_lost_share` of the
    rollouts are lost to faults of ours, refills included, the stage fails and is tried again: what is left would be
    too little to judge by, and not a fair sample.
    """

    harness: str = "tool_loop"
    temperature: float = 1.0
    max_tokens: int = 96
    concurrency: int = 48
    max_refills: int = 2
    max_lost_share: float = 0.2
    docker_image: str = ""
    harness_folder: str = ".harnesses"
    command_timeout_s: float = 20.0
    stop_early: bool = True

    def __post_init__(self) -> None:
        if self.harness not in HARNESSES:
            raise ValueError(f"rollouts.harness is {self.harness!r}; want one of {sorted(HARNESSES)}")
        for name, least in (("concurrency", 1), ("max_tokens", 1), ("max_refills", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"rollouts.{name} is {getattr(self, name)}; want at least {least}")
        if self.command_timeout_s <= 0:
            raise ValueError(f"rollouts.command_timeout_s is {self.command_timeout_s}; want positive seconds")
        if not 0 <= self.max_lost_share < 1:
            raise ValueError(f"rollouts.max_lost_share is {self.max_lost_share}; want a share from 0 to below 1")
        if self.temperature <= 0:
            raise ValueError(
                f"rollouts.temperature is {self.temperature}; want > 0: greedy rollouts of one task are all the same, "
                f"and such groups teach nothing"
            )

    def sampling(self, seed: int) -> Sampling:
        """How completions of training rollouts are drawn."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, seed=seed)


def _tool_loop(config: RolloutConfig, gates: GateConfig) -> Harness:
    from environments.harnesses.tool_loop import ToolLoop

    check = (lambda prefix, suite: check_prefix(prefix, suite, gates)) if config.stop_early else None
    return ToolLoop(check=check, command_timeout_s=config.command_timeout_s)


def _mini_swe_agent(config: RolloutConfig, gates: GateConfig, *, python_api: bool = False) -> Harness:
    from environments.harnesses.mini_swe_agent import TOOL_LOOP, MiniSweAgent

    return MiniSweAgent(template=TOOL_LOOP, command_timeout_s=config.command_timeout_s, python_api=python_api)


def _command(spec: CommandSpec) -> Callable[[RolloutConfig, GateConfig], Harness]:
    def make(config: RolloutConfig, gates: GateConfig) -> Harness:
        folder = Path(config.harness_folder) / spec.name
        return CommandHarness(spec, folder, command_timeout_s=config.command_timeout_s)

    return make


HARNESSES: dict[str, Callable[[RolloutConfig, GateConfig], Harness]] = {
    "tool_loop": _tool_loop,
    "mini_swe_agent": _mini_swe_agent,
    "mini_swe_agent_api": partial(_mini_swe_agent, python_api=True),
    **{name: _command(spec) for name, spec in SPECS.items()},
}


class Journal:
    """Finished trajectories on disk, one line each, and the states they left: what a stopped stage goes on from.

    Rollouts that earlier attempts of the stage lost to faults of ours are not remembered: they are done again.
    """

    def __init__(self, folder: Path) -> None:
        self.states = folder / "states"
        self.states.mkdir(parents=True, exist_ok=True)
        self._path = folder / "trajectories.jsonl"
        self._done = {t.rollout_id: t for t in _read_whole_lines(self._path) if t.status != "infra_fault"}

    def find(self, rollout_id: str) -> Trajectory | None:
        """See `TrajectoryLog.find`."""
        return self._done.get(rollout_id)

    def add(self, trajectory: Trajectory, final_state: bytes | None) -> None:
        """See `TrajectoryLog.add`: the state first, then the line that says it is there."""
        if final_state is not None:
            (self.states / Path(trajectory.final_state_uri).name).write_bytes(final_state)
        with self._path.open("ab") as stream:
            stream.write(records.to_json(trajectory) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        self._done[trajectory.rollout_id] = trajectory


def _read_whole_lines(path: Path) -> list[Trajectory]:
    """The trajectories of a journal; a last line that a kill cut short is cut off."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return [records.from_json(Trajectory, line, where=str(path)) for line in whole.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Which groups to roll out, under which policy, of which suite."""

    suite: str
    policy: Policy
    requests: tuple[GroupRequest, ...]
    iteration: int | None
    sampling: Sampling
    label: str = "roll out"

    def split(self, parts: int) -> tuple[RolloutPlan, ...]:
        """The plan in at most `parts` plans of nearly equal size. What a rollout becomes does not depend on it."""
        dealt = (self.requests[number::parts] for number in range(parts))
        return tuple(replace(self, requests=requests) for requests in dealt if requests)


def roll_out(
    desk: Desk, plan: RolloutPlan, *, parents: tuple[Manifest, ...], config: RolloutConfig, gates: GateConfig
) -> Work:
    """Do the plan: a folder with `groups.parquet` and `states/`."""

    def make(out: Path, scratch: Path) -> int:
        journal = Journal(scratch)
        groups = _roll_out(desk, plan, config, gates, journal)
        _refuse_outage(groups, config.max_lost_share)
        return write_rollouts(groups, journal, out)

    return Work(
        stage=ROLL_OUT,
        parents=(plan.policy.manifest, *parents),
        section=[config, gates, desk.workshop.engine_config.kind, plan.requests, plan.policy.version, plan.sampling],
        make=make,
        iteration=plan.iteration,
        schema_version=records.schema_version(Group),
    )


def _refuse_outage(groups: Sequence[Group], max_lost_share: float) -> None:
    """Raise EngineError when too many rollouts are missing: published, the gap would be taken for the result."""
    wanted = sum(g.requested_size for g in groups)
    lost = wanted - sum(len(g.members) for g in groups)
    if lost <= max_lost_share * wanted:
        return
    reasons = Counter(e.reason for g in groups for e in g.excluded)
    told = "; ".join(f"{count} times {reason[:200]}" for reason, count in reasons.most_common(3))
    raise EngineError(
        f"{lost} of {wanted} rollouts were lost to faults of ours ({told}); mend what is named, then run the same "
        f"command again: finished rollouts are kept"
    )


def _roll_out(
    desk: Desk, plan: RolloutPlan, config: RolloutConfig, gates: GateConfig, journal: Journal
) -> tuple[Group, ...]:
    engine = desk.workshop.engine(plan.policy.folder(desk), plan.policy.version)
    harness = HARNESSES[config.harness](config, gates)
    recorder, plain_boxes = desk.workshop.recorder(engine), desk.workshop.boxes
    total = sum(r.size for r in plan.requests)
    desk.progress.begin(plan.label, iteration=plan.iteration, total=total)
    meter = _Meter(desk, time.monotonic())

    async def work() -> tuple[Group, ...]:
        async with boxes_for(harness, plain_boxes, recorder) as boxes:
            room = RolloutRoom(
                suite=desk.workshop.suite(plan.suite),
                harness=harness,
                boxes=boxes,
                recorder=recorder,
                log=journal,
                sampling=plan.sampling,
                concurrency=config.concurrency,
                max_refills=config.max_refills,
                policy_version=plan.policy.version,
            )
            return await roll_out_groups(plan.requests, room, on_done=meter.count)

    return desk.workshop.run(work)


@dataclass
class _Meter:
    """Counts finished rollouts and shows how fast tokens come."""

    desk: Desk
    started: float
    tokens: int = 0

    def count(self, trajectory: Trajectory) -> None:
        self.tokens += trajectory.usage.completion_tokens
        self.desk.progress.advance()
        self.desk.progress.show(tokens_per_s=self.tokens / max(1e-9, time.monotonic() - self.started))


def write_rollouts(groups: Sequence[Group], journal: Journal, out: Path) -> int:
    """Make the artifact of `groups`, with the states that their rollouts left in the journal; its rows."""
    out.mkdir()
    shutil.copytree(journal.states, out / "states")
    return records.write_parquet(groups, out / GROUPS_FILE, cls=Group)


def merge(desk: Desk, plan: RolloutPlan, parts: tuple[Manifest, ...], *, parents: tuple[Manifest, ...]) -> Work:
    """The rollouts of a plan that was done in parts, in the plan's order: as if it had been done in one."""

    def make(out: Path, scratch: Path) -> int:
        made = {g.group_id: g for part in parts for g in read_groups(desk, part)}
        for part in parts:
            shutil.copytree(desk.store.path(part) / "states", out / "states", dirs_exist_ok=True)
        groups = [made[r.group_id] for r in plan.requests if r.group_id in made]
        return records.write_parquet(groups, out / GROUPS_FILE, cls=Group)

    return Work(
        stage=MERGE,
        parents=(plan.policy.manifest, *parents, *parts),
        section=[],
        make=make,
        iteration=plan.iteration,
        schema_version=records.schema_version(Group),
    )


def read_groups(desk: Desk, manifest: Manifest) -> list[Group]:
    """The groups of a rollouts artifact."""
    return records.read_parquet(Group, desk.store.path(manifest) / GROUPS_FILE)
