"""The one rollout loop: task + harness + sandbox + recorder -> Trajectory; and groups of them, with refills."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from environments.faults import INFRA_ERRORS, of_exception, of_wall_time
from environments.harnesses.base import Harness, HarnessOutcome
from environments.harnesses.error_classes import classed
from environments.polar.base import NOTHING_RECORDED, Recorder, Recording, SessionBudget
from environments.polar.errors import LogFailed
from environments.sandboxes.base import Sandbox, SandboxProvider
from environments.suites.base import Suite
from environments.types import CallRecord, Exclusion, Group, Limits, TaskSpec, Trajectory, Usage
from infra.engines.base import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One rollout to do. Its id is a pure function of what it is, so a resumed run asks for the same one."""

    group_id: str
    task: TaskSpec
    index: int
    attempt: int = 0

    @property
    def rollout_id(self) -> str:
        """'GROUP-INDEX' and, for a refill, '-ATTEMPT'."""
        return f"{self.group_id}-{self.index}" + (f"-{self.attempt}" if self.attempt else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """One selection of a task: `size` rollouts of it."""

    group_id: str
    task: TaskSpec
    size: int


class TrajectoryLog(Protocol):
    """Remembers finished rollouts, so that a killed run does none of them twice."""

    def find(self, rollout_id: str) -> Trajectory | None:
        """The finished trajectory, None when there is none."""
        ...

    def add(self, trajectory: Trajectory, final_state: bytes | None) -> None:
        """Make it durable before returning. `final_state` is None when the box was lost."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRoom:
    """All that rollouts share. `policy_version` is that of the engine when the rollouts begin.

    `max_refills` bounds the attempts per index after infra faults; before the first of them `refill_pause_s` (seconds)
    go by, before each further one four times as many: what broke may need a moment to come back.
    """

    suite: Suite
    harness: Harness
    boxes: SandboxProvider
    recorder: Recorder
    log: TrajectoryLog
    sampling: Sampling
    concurrency: int = 32
    max_refills: int = 2
    refill_pause_s: float = 0.5
    policy_version: int = 0


async def roll_out(request: RolloutRequest, room: RolloutRoom) -> Trajectory:
    """One rollout. What the agent does becomes its record; what breaks on our side becomes an infra fault."""
    done = room.log.find(request.rollout_id)
    if done is not None:
        return done
    started = time.monotonic()
    try:
        outcome, state, recording = await _run(request, room)
    except LogFailed as error:  # nothing that was recorded is safe, so nothing is kept
        outcome, state, recording = _infra_fault(error), None, NOTHING_RECORDED
    wall_s = time.monotonic() - started
    outcome = _settled(outcome, recording, request.task.limits)
    trajectory = _trajectory(request, outcome, recording, room, wall_s=wall_s)
    room.log.add(trajectory, state)
    return trajectory


async def _run(request: RolloutRequest, room: RolloutRoom) -> tuple[HarnessOutcome, bytes | None, Recording]:
    task, suite, limits = request.task, room.suite, request.task.limits
    # One call more than turns: the final answer is a call and no turn. The time starts with the first call, so the
    # loop's own, which tells ours from the agent's, is always over first; this one stops calls that outlive it.
    budget = SessionBudget(max_calls=limits.max_turns + 1, max_tokens=limits.max_tokens, wall_time_s=limits.wall_time_s)
    endpoint = room.recorder.open(request.rollout_id, sampling=room.sampling, budget=budget)
    sandbox: Sandbox | None = None
    state: bytes | None = None
    try:
        sandbox = await room.boxes.start(suite.box(task))
        await sandbox.import_state(suite.initial_state(task))
        async with asyncio.timeout(limits.wall_time_s):
            outcome = await room.harness.run(task, suite=suite, sandbox=sandbox, endpoint=endpoint)
        state = await sandbox.export_state()
    except INFRA_ERRORS as error:
        outcome = _infra_fault(error)
    finally:
        try:
            recording = await room.recorder.close(request.rollout_id)
        finally:
            if sandbox is not None:
                await sandbox.stop()
    return outcome, state, recording


def _infra_fault(error: Exception) -> HarnessOutcome:
    fault = of_exception(error)
    return HarnessOutcome(status=fault.status, fault=fault.text, turns=(), final_payload=None)


def _settled(outcome: HarnessOutcome, recording: Recording, limits: Limits) -> HarnessOutcome:
    """The outcome, once the recording has told what the harness could not know: lost calls, a slow model."""
    if outcome.status == "infra_fault":
        return outcome
    if recording.broken:
        text = f"lost calls: {', '.join(recording.broken)}"
        return replace(outcome, status="infra_fault", fault=text, final_payload=None)
    if outcome.out_of_time:
        fault = of_wall_time(_time_open(recording.calls), limits)
        return replace(outcome, status=fault.status, fault=fault.text)
    return outcome


def _time_open(calls: Sequence[CallRecord]) -> float:
    """Seconds in which at least one call was open: overlapping calls count once."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted((c.started_at, c.started_at + c.latency_s) for c in calls):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total


def _trajectory(
    request: RolloutRequest, outcome: HarnessOutcome, recording: Recording, room: RolloutRoom, *, wall_s: float
) -> Trajectory:
    turns = outcome.turns or classed(recording.turns, room.suite)
    versions = [s.policy_version for c in recording.chains for s in c.segments if s.trainable]
    usage = Usage(
        turns=len(turns),
        calls=len(recording.calls),
        prompt_tokens=sum(len(c.prompt_tail_ids) for c in recording.calls),
        completion_tokens=sum(len(c.completion_ids) for c in recording.calls),
        wall_s=wall_s,
        sandbox_s=sum(t.duration_s for t in turns),
    )
    return Trajectory(
        rollout_id=request.rollout_id,
        group_id=request.group_id,
        index=request.index,
        attempt=request.attempt,
        task_id=request.task.task_id,
        status=outcome.status,
        fault=outcome.fault,
        chains=recording.chains,
        turns=turns,
        final_payload=outcome.final_payload,
        final_thought=outcome.final_thought,
        usage=usage,
        # A rollout that ended before it sampled anything is still evidence of the policy that was there.
        policy_versions=(min(versions, default=room.policy_version), max(versions, default=room.policy_version)),
        final_state_uri=f"states/{request.rollout_id}.tar",
    )


async def _fill(request: GroupRequest, index: int, room: RolloutRoom) -> tuple[Trajectory | None, list[Exclusion]]:
    """One member of a group: an infra fault is tried again, up to `max_refills` times."""
    excluded: list[Exclusion] = []
    for attempt in range(room.max_refills + 1):
        rollout = RolloutRequest(group_id=request.group_id, task=request.task, index=index, attempt=attempt)
        trajectory = await roll_out(rollout, room)
        if trajectory.status != "infra_fault":
            return trajectory, excluded
        excluded.append(Exclusion(rollout_id=trajectory.rollout_id, reason=trajectory.fault))
        if attempt < room.max_refills:
            await asyncio.sleep(room.refill_pause_s * 4**attempt)
    return None, excluded


async def roll_out_groups(
    requests: Sequence[GroupRequest], room: RolloutRoom, *, on_done: Callable[[Trajectory], None] | None = None
) -> tuple[Group, ...]:
    """All groups, `room.concurrency` rollouts at a time, in the order of `requests` whatever order they end in."""
    slots = asyncio.Semaphore(room.concurrency)

    async def member(request: GroupRequest, index: int) -> tuple[Trajectory | None, list[Exclusion]]:
        async with slots:
            trajectory, excluded = await _fill(request, index, room)
        if trajectory is not None and on_done is not None:
            on_done(trajectory)
        return trajectory, excluded

    async def group(request: GroupRequest) -> Group:
        members = await asyncio.gather(*(member(request, i) for i in range(request.size)))
        return Group(
            group_id=request.group_id,
            task_id=request.task.task_id,
            task_digest=request.task.digest,
            requested_size=request.size,
            members=tuple(t for t, _ in members if t is not None),
            excluded=tuple(e for _, es in members for e in es),
        )

    return tuple(await asyncio.gather(*(group(r) for r in requests)))
