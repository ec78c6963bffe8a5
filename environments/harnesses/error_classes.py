"""What counts as an error of the agent's: one rule for turns of our own and for those read off the wire."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from environments.polar.tool_results import as_command_result
from environments.sandboxes.base import CommandResult
from environments.suites.base import Suite
from environments.types import ErrorClass, Turn


@dataclass(slots=True)
class ErrorClasses:
    """Classes the results of one rollout in order: a command that failed before and is tried unchanged repeats."""

    suite: Suite
    _failed: set[str] = field(default_factory=set)

    def of(self, command: str, result: CommandResult) -> ErrorClass | None:
        """The suite's word, but an exact repeat of a command that failed is a class of its own."""
        error: ErrorClass | None = "timeout" if result.timed_out else "killed" if result.fault else None
        error = error or self.suite.error_class(command, result)
        if error is None:
            self._failed.discard(command)
            return None
        repeated = command in self._failed
        self._failed.add(command)
        return "repeat" if repeated else error


def classed(turns: Iterable[Turn], suite: Suite) -> tuple[Turn, ...]:
    """Turns from the wire with their error classes; those that have one keep it."""
    classes: dict[str, ErrorClasses] = {}
    return tuple(
        turn
        if turn.error_class is not None
        else replace(
            turn,
            error_class=classes.setdefault(turn.agent_id, ErrorClasses(suite)).of(
                turn.action, as_command_result(turn.observation, turn.duration_s)
            ),
        )
        for turn in turns
    )
