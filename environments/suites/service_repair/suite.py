"""The suite: pools, worlds, the reference, and the grade."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator

from environments.sandboxes.base import CommandResult, SandboxProvider, SandboxSpec
from environments.suites.base import Grade, ReferenceStep
from environments.suites.service_repair.acts import error_class
from environments.suites.service_repair.blueprint import (
    MAX_HORIZON,
    MIN_HORIZON,
    VERSION,
    blueprint,
    broken_tar,
    kinds_of,
    split_of,
)
from environments.suites.service_repair.demonstrations import reference_steps
from environments.suites.service_repair.grading import damage, graded_tree
from environments.suites.service_repair.tree import TreeError, from_tar, to_tar
from environments.types import ErrorClass, Limits, Split, TaskPool, TaskSpec
from infra.digests import digest_of

_TOKENS_PER_TURN = 256
_CHECK_TIMEOUT_S = 30.0


class ServiceRepair:
    """Broken service trees below /srv, mended with a real shell."""

    name = "service_repair"
    version = VERSION

    def pool(self, *, split: Split, size: int, seed: int, min_horizon: int, max_horizon: int) -> TaskPool:
        """`size` tasks, horizons spread evenly over the closed range; the splits share no combination of faults.

        Fewer tasks than horizons reach from one end of the range to the other. Raises ValueError where the range
        is empty or outside 3..50, or `size` is not positive.
        """
        if size < 1:
            raise ValueError(f"size is {size}; a pool wants at least 1 task")
        if not MIN_HORIZON <= min_horizon <= max_horizon <= MAX_HORIZON:
            raise ValueError(
                f"horizons {min_horizon}..{max_horizon}; service_repair wants {MIN_HORIZON} <= min <= max <= "
                f"{MAX_HORIZON}"
            )
        tasks: dict[str, TaskSpec] = {}
        for index, horizon in enumerate(_spread(size, min_horizon, max_horizon)):
            task = _first_new(_seeds(seed, split, index), horizon, split, tasks)
            tasks[task.task_id] = task
        name = f"{self.name}-{split}-{min_horizon}-{max_horizon}-{seed}"
        return TaskPool(name=name, version=self.version, split=split, tasks=tuple(tasks.values()))

    def initial_state(self, task: TaskSpec) -> bytes:
        """The broken world as a tar."""
        return broken_tar(task.seed, task.horizon)

    def box(self, task: TaskSpec) -> SandboxSpec:
        """A box without network; the agent starts in /srv."""
        return SandboxSpec(label=task.task_id)

    def reference(self, task: TaskSpec) -> tuple[ReferenceStep, ...]:
        """The steps of a careful agent: `task.horizon` of them."""
        return reference_steps(blueprint(task.seed, task.horizon))

    def error_class(self, command: str, result: CommandResult) -> ErrorClass | None:
        """See `acts.error_class`."""
        return error_class(command, result)

    async def grade(
        self, task: TaskSpec, *, final_state: bytes, final_payload: str | None, boxes: SandboxProvider
    ) -> Grade:
        """Passed: an answer was handed in, nothing else was broken, and a pristine check passes in a fresh box."""
        if not (final_payload or "").strip():
            return Grade(passed=False, detail="no final answer was handed in")
        plan = blueprint(task.seed, task.horizon)
        try:
            final = from_tar(final_state)
        except TreeError as error:
            return Grade(passed=False, detail=str(error))
        broken = damage(plan, final)
        if broken:
            return Grade(passed=False, detail=broken[0])
        box = await boxes.start(SandboxSpec(label=f"{task.task_id}-grade"))
        try:
            await box.import_state(to_tar(graded_tree(plan, final)))
            result = await box.run("./check", timeout_s=_CHECK_TIMEOUT_S)
        finally:
            await box.stop()
        detail = result.output.strip().splitlines()[-1:] or [f"check ended with {result.exit_code}"]
        return Grade(passed=result.exit_code == 0 and detail == ["ok"], detail=detail[0])

    def forbidden(self, task: TaskSpec) -> tuple[str, ...]:
        """The files that judge are not the agent's to change."""
        return ("/srv/check", "/srv/spec")


def _spread(size: int, low: int, high: int) -> list[int]:
    """`size` whole numbers in low..high, each as often as the others or, where they are few, evenly far apart."""
    span = high - low + 1
    if size >= span:
        return [low + index % span for index in range(size)]
    return [low + index * (span - 1) // max(1, size - 1) for index in range(size)]


def _seeds(seed: int, split: Split, index: int) -> Iterator[int]:
    """Candidate seeds for one place of a pool, without end."""
    rng = random.Random(digest_of(["service_repair", seed, split, index]))
    while True:
        yield rng.getrandbits(40)


def _first_new(seeds: Iterator[int], horizon: int, split: Split, taken: Container[str]) -> TaskSpec:
    """The first candidate of this split that the pool does not have yet; about 3 in 10 are held out."""
    for seed in seeds:
        if split_of(kinds_of(seed, horizon)) == split and (task := task_of(seed, horizon)).task_id not in taken:
            return task
    raise AssertionError("the candidates have no end")


def task_of(seed: int, horizon: int) -> TaskSpec:
    """The task of this seed and horizon, whichever split it belongs to. Raises ValueError out of 3..50 turns."""
    plan = blueprint(seed, horizon)
    names = [app.name for app in plan.apps]
    broken = f"Service {names[0]} is" if len(names) == 1 else f"Something in services {' '.join(names)} is"
    max_turns = horizon + horizon // 2 + 4
    return TaskSpec(
        task_id=f"service_repair-{horizon:02d}-{seed:010x}",
        suite=ServiceRepair.name,
        instruction=f"{broken} broken. Make ./check pass, then answer.",
        seed=seed,
        horizon=horizon,
        limits=Limits(max_turns=max_turns, max_tokens=max_turns * _TOKENS_PER_TURN),
        tags=tuple(f"fault:{kind}" for kind in kinds_of(seed, horizon)),
    )
