"""The suite protocol: where tasks come from and how their final state is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from environments.sandboxes.base import CommandResult, SandboxProvider, SandboxSpec
from environments.types import ErrorClass, Split, TaskPool, TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStep:
    """One turn of a reference solution: what a careful agent thinks and runs."""

    thought: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The execution gate's finding on a final state. `detail` says which check failed, in one line."""

    passed: bool
    detail: str
    scores: tuple[tuple[str, float], ...] = ()


class Suite(Protocol):
    """One family of tasks. Everything is a pure function of the task, but `grade`, which runs a real box."""

    name: str
    version: int

    def pool(self, *, split: Split, size: int, seed: int, min_horizon: int, max_horizon: int) -> TaskPool:
        """`size` tasks with horizons in the closed range, spread evenly; train and held_out never share a kin."""
        ...

    def initial_state(self, task: TaskSpec) -> bytes:
        """The broken world as a tar for `Sandbox.import_state`."""
        ...

    def box(self, task: TaskSpec) -> SandboxSpec:
        """The box the agent works in."""
        ...

    def reference(self, task: TaskSpec) -> tuple[ReferenceStep, ...]:
        """A solution of `task.horizon` turns that passes all gates."""
        ...

    def error_class(self, command: str, result: CommandResult) -> ErrorClass | None:
        """What kind of error this is, None when it is none (a check that reports failure, a grep without match)."""
        ...

    async def grade(
        self, task: TaskSpec, *, final_state: bytes, final_payload: str | None, boxes: SandboxProvider
    ) -> Grade:
        """Judge in a fresh box, with the suite's own check, whatever the agent did to its copy."""
        ...

    def forbidden(self, task: TaskSpec) -> tuple[str, ...]:
        """Paths or acts that the command policy forbids here, in its words (see environments.gates.commands)."""
        ...
