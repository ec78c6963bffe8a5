"""Runs made of strings: '.' a turn without error, 'x' one with, 'r' an exact repeat of a failed command."""

from __future__ import annotations

from typing import get_args

from environments.types import ErrorClass
from training.evaluation.runs import Run

KINDS: dict[str, ErrorClass | None] = {".": None, "x": "exit_code", "r": "repeat", "p": "parse"}
assert {k for k in KINDS.values() if k} <= set(get_args(ErrorClass))


def run(
    pattern: str,
    *,
    passed: bool = True,
    task_id: str = "t",
    horizon: int = 3,
    actions: tuple[str, ...] | None = None,
    finished: bool = True,
    index: int = 0,
) -> Run:
    """One run with a turn for each letter."""
    return Run(
        rollout_id=f"{task_id}-{index}",
        task_id=task_id,
        horizon=horizon,
        errors=tuple(KINDS[c] for c in pattern),
        actions=actions or tuple(f"command {i}" for i in range(len(pattern))),
        context_tokens=tuple(100 * (i + 1) for i in range(len(pattern))),
        passed=passed,
        finished=finished,
    )
