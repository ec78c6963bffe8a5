"""Gate 3: does the world the agent left pass the suite's own check, in a fresh box."""

from __future__ import annotations

from environments.sandboxes.base import SandboxProvider
from environments.suites.base import Grade, Suite
from environments.types import GateResult, Score, TaskSpec, Trajectory

NAME = "execution"


def not_finished(trajectory: Trajectory) -> GateResult | None:
    """The gate's finding where there is nothing to run: the agent spent its budget or broke its box."""
    if trajectory.status == "completed":
        return None
    reason = {"budget_exhausted": "a budget was spent before the task was done", "agent_fault": "the agent's own fault"}
    detail = f"{reason.get(trajectory.status, trajectory.status)}{': ' if trajectory.fault else ''}{trajectory.fault}"
    return GateResult(name=NAME, outcome="failed", detail=detail)


async def execute(
    trajectory: Trajectory, task: TaskSpec, suite: Suite, boxes: SandboxProvider, final_state: bytes
) -> tuple[GateResult, tuple[Score, ...]]:
    """Grade the final state in a fresh box. Raises SandboxError when the host fails: that is never the agent's."""
    grade: Grade = await suite.grade(task, final_state=final_state, final_payload=trajectory.final_payload, boxes=boxes)
    if not grade.passed:
        return GateResult(name=NAME, outcome="failed", detail=grade.detail), ()
    scores = tuple(Score(name=name, value=value) for name, value in grade.scores)
    return GateResult(name=NAME, outcome="passed", detail=grade.detail), scores
