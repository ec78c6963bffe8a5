"""What the tests of `service_repair` share: tasks by their faults, and a task played in a real box."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from environments.sandboxes.base import CommandResult, SandboxProvider
from environments.suites.base import Grade
from environments.suites.service_repair.blueprint import blueprint, kinds_of
from environments.suites.service_repair.demonstrations import Demonstrator, FinalAnswer, Seen
from environments.suites.service_repair.faults import KINDS
from environments.suites.service_repair.suite import ServiceRepair, task_of
from environments.types import TaskSpec

SUITE = ServiceRepair()


@dataclass(frozen=True)
class Played:
    """The results of the commands, and the grade of what they left."""

    results: tuple[CommandResult, ...]
    grade: Grade


def task_with(*kinds: str, on_one_app: bool = False) -> TaskSpec:
    """The first task with exactly these kinds of faults, each once."""
    horizon = 1 + sum(KINDS[kind].turns for kind in kinds)
    for seed in itertools.count():
        if kinds_of(seed, horizon) == tuple(sorted(kinds)):
            plan = blueprint(seed, horizon)
            if len(plan.faults) == len(kinds) and (not on_one_app or len({f.app for f in plan.faults}) == 1):
                return task_of(seed, horizon)
    raise AssertionError


def faulty_app(task: TaskSpec) -> str:
    """The app of the first fault."""
    return blueprint(task.seed, task.horizon).faults[0].app


async def play(
    boxes: SandboxProvider, task: TaskSpec, commands: Iterable[str], *, payload: str | None = "done"
) -> Played:
    """Run the commands in a box of the task, then grade; '{app}' stands for the app of the first fault."""
    box = await boxes.start(SUITE.box(task))
    try:
        await box.import_state(SUITE.initial_state(task))
        results = [await box.run(command.replace("{app}", faulty_app(task))) for command in commands]
        state = await box.export_state()
    finally:
        await box.stop()
    grade = await SUITE.grade(task, final_state=state, final_payload=payload, boxes=boxes)
    return Played(tuple(results), grade)


def reference_commands(task: TaskSpec) -> list[str]:
    """The reference's commands."""
    return [step.command for step in SUITE.reference(task)]


async def demonstrate(
    boxes: SandboxProvider, task: TaskSpec, demonstrator: Demonstrator
) -> tuple[list[Seen], FinalAnswer | None, Grade]:
    """Let a demonstrator work until it answers or the task's turns are used up, then grade."""
    history: list[Seen] = []
    final: FinalAnswer | None = None
    box = await boxes.start(SUITE.box(task))
    try:
        await box.import_state(SUITE.initial_state(task))
        while len(history) < task.limits.max_turns and final is None:
            move = demonstrator.next_move(history)
            if isinstance(move, FinalAnswer):
                final = move
            else:
                history.append(Seen(move.command, (await box.run(move.command)).output))
        state = await box.export_state()
    finally:
        await box.stop()
    payload = final.answer if final else None
    return history, final, await SUITE.grade(task, final_state=state, final_payload=payload, boxes=boxes)
