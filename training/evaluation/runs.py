"""A rollout reduced to what the statistics need: which turns erred, and whether the task was solved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from environments.types import ErrorClass, Judged, TaskSpec, Trajectory, Unjudged


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One judged rollout. `errors[t]` is the error class of turn t (None: no error); `horizon` is the task's.

    `context_tokens[t]` is how many tokens the model had read and written when turn t's action ended, -1 where the
    turn's call is in no chain. `passed` is terminal success; `strict` is success without one error.
    """

    rollout_id: str
    task_id: str
    horizon: int
    errors: tuple[ErrorClass | None, ...]
    actions: tuple[str, ...]
    context_tokens: tuple[int, ...]
    passed: bool
    finished: bool

    @property
    def strict(self) -> bool:
        """Solved with no error in any turn."""
        return self.passed and not any(self.errors)

    def without_repeats(self) -> tuple[bool, ...]:
        """Whether each turn erred, turns that repeat a failed command left out.

        An exact repeat errs because the one before it did: it would make errors look sticky by construction.
        """
        return tuple(e is not None for e in self.errors if e != "repeat")


def _context(trajectory: Trajectory) -> dict[str, int]:
    """Call id -> tokens of its chain up to and with the call's completion."""
    out: dict[str, int] = {}
    for chain in trajectory.chains:
        total = 0
        for segment in chain.segments:
            total += len(segment.ids)
            if segment.trainable:
                out[segment.call_id] = total
    return out


def runs_of(
    trajectories: Iterable[Trajectory], judged: Iterable[Judged], tasks: Mapping[str, TaskSpec]
) -> tuple[Run, ...]:
    """Pair trajectories with verdicts by rollout id. Rollouts without a verdict are no evidence and are left out.

    Raises KeyError when a judged rollout's task is not in `tasks`.
    """
    verdicts = {j.rollout_id: j for j in judged if not isinstance(j.result, Unjudged)}
    out: list[Run] = []
    for trajectory in trajectories:
        verdict = verdicts.get(trajectory.rollout_id)
        if verdict is None:
            continue
        context = _context(trajectory)
        out.append(
            Run(
                rollout_id=trajectory.rollout_id,
                task_id=trajectory.task_id,
                horizon=tasks[trajectory.task_id].horizon,
                errors=tuple(turn.error_class for turn in trajectory.turns),
                actions=tuple(turn.action for turn in trajectory.turns),
                context_tokens=tuple(context.get(turn.call_id, -1) for turn in trajectory.turns),
                passed=verdict.passed,
                finished=trajectory.status == "completed",
            )
        )
    return tuple(out)
