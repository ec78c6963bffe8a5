"""`longbreath tasks`: what there is to do, and the proof that it can be done."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.markup import escape
from rich.table import Table

from flows.cli.errors import EXIT_FAILED, guarded
from flows.cli.live import console
from flows.cli.options import Common, Settings

if TYPE_CHECKING:
    from environments.types import TaskPool, TaskSpec
    from tasks.pools import Pools

app = App(name="tasks", help="List, show and validate the tasks of a configuration.")


def _pools(settings: Settings) -> Pools:
    from environments.suites.registry import suite_named
    from tasks.pools import make_pools

    config = settings.build()
    return make_pools(suite_named(config.pool.suite), config.pool)


def _row(task: TaskSpec, split: str) -> dict[str, Any]:
    return {"task_id": task.task_id, "split": split, "horizon": task.horizon, "tags": list(task.tags)}


@app.command(name="list")
def list_(*, settings: Settings = Settings(), common: Common = Common()) -> int:  # noqa: B008
    """List the tasks of both splits."""

    def work() -> int:
        pools = _pools(settings)
        rows = [_row(t, pool.split) for pool in (pools.train, pools.held_out) for t in pool.tasks]
        table = Table("task", "split", "horizon", "tags", title=f"{len(rows)} tasks", title_justify="left")
        table.columns[0].no_wrap = True  # a name that is cut short cannot be given to `tasks show`
        for row in rows:
            tags = " ".join(tag.partition(":")[2] for tag in row["tags"])
            table.add_row(row["task_id"], row["split"], str(row["horizon"]), tags)
        console().print(table)
        common.emit({"tasks": rows})
        return 0

    return guarded(work)


def _find(pools: Pools, task_id: str) -> tuple[TaskSpec, TaskPool]:
    for pool in (pools.train, pools.held_out):
        for task in pool.tasks:
            if task.task_id == task_id:
                return task, pool
    raise ValueError(f"no task {task_id!r} in the pools of this configuration; see `longbreath tasks list`")


@app.command
def show(task_id: str, *, settings: Settings = Settings(), common: Common = Common()) -> int:  # noqa: B008
    """Show one task: its instruction, its faults and its reference solution."""

    def work() -> int:
        from environments.suites.registry import suite_named

        task, pool = _find(_pools(settings), task_id)
        steps = suite_named(task.suite).reference(task)
        out = console()
        out.print(f"[bold]{task.task_id}[/] ({pool.split}, {task.horizon} turns, at most {task.limits.max_turns})")
        out.print(f"{escape(task.instruction)}\n[dim]{' '.join(task.tags)}[/]\n")
        for number, step in enumerate(steps, 1):
            out.print(f"{number:3} [italic dim]{escape(step.thought)}[/]\n    $ {escape(step.command)}")
        common.emit(
            {
                **_row(task, pool.split),
                "instruction": task.instruction,
                "digest": task.digest,
                "reference": [{"thought": s.thought, "command": s.command} for s in steps],
            }
        )
        return 0

    return guarded(work)


@app.command
def validate(*, sample: int = 20, settings: Settings = Settings(), common: Common = Common()) -> int:  # noqa: B008
    """Prove tasks without a model: the reference solution passes, doing nothing fails.

    Parameters
    ----------
    sample: int
        How many tasks to prove, drawn from both splits; 0 proves all.
    """

    def work() -> int:
        pools = _pools(settings)
        tasks = [*pools.train.tasks, *pools.held_out.tasks]
        chosen = tasks if sample == 0 else random.Random(0).sample(tasks, min(sample, len(tasks)))
        failures = asyncio.run(_prove_all(chosen))
        out = console()
        for task_id, why in failures.items():
            out.print(f"[red]{task_id}[/]: {escape(why)}")
        out.print(f"{len(chosen) - len(failures)} of {len(chosen)} tasks are sound")
        common.emit({"proved": len(chosen), "failures": failures})
        return EXIT_FAILED if failures else 0

    return guarded(work)


async def _prove_all(tasks: list[TaskSpec]) -> dict[str, str]:
    failures = {}
    for task in tasks:
        why = await _prove(task)
        if why:
            failures[task.task_id] = why
    return failures


async def _prove(task: TaskSpec) -> str:
    """Empty when the task is sound, else what is wrong with it."""
    from environments.sandboxes.bubblewrap import BubblewrapProvider
    from environments.suites.registry import suite_named

    suite, boxes = suite_named(task.suite), BubblewrapProvider()
    start = suite.initial_state(task)
    box = await boxes.start(suite.box(task))
    try:
        await box.import_state(start)
        for step in suite.reference(task):
            await box.run(step.command)
        solved = await box.export_state()
    finally:
        await box.stop()
    answer = '{"answer": "done"}'
    reference = await suite.grade(task, final_state=solved, final_payload=answer, boxes=boxes)
    empty = await suite.grade(task, final_state=start, final_payload=answer, boxes=boxes)
    if not reference.passed:
        return f"the reference solution fails: {reference.detail}"
    return "doing nothing passes" if empty.passed else ""
