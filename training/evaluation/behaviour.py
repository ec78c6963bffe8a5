"""What a careful agent does: verifies before it says it is done, and looks after something went wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from training.evaluation.estimates import Estimate, rate_by_task
from training.evaluation.runs import Run

ActKind = Literal["inspect", "verify", "mend", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """`verify_before_finish`: of rollouts that said they were done, those that verified after their last mend.

    `inspect_after_error`: of turns that follow an error, those that look before they act. None: no such case.
    """

    verify_before_finish: Estimate | None
    inspect_after_error: Estimate | None


def _verified(kinds: Sequence[ActKind]) -> bool:
    last_mend = max((i for i, kind in enumerate(kinds) if kind == "mend"), default=-1)
    return "verify" in kinds[last_mend + 1 :]


def measure_behaviour(
    runs: Sequence[Run], act_kind: Callable[[str], ActKind], *, confidence: float = 0.95
) -> Behaviour:
    """Both rates, clustered by task. `act_kind` is the suite's own reading of a command."""
    counts: dict[str, dict[str, float]] = {n: defaultdict(float) for n in ("done", "verified", "errors", "inspected")}
    for run in runs:
        kinds = [act_kind(action) for action in run.actions]
        if run.finished:
            counts["done"][run.task_id] += 1
            counts["verified"][run.task_id] += _verified(kinds)
        for error, kind in zip(run.errors, kinds[1:], strict=False):
            if error is not None:
                counts["errors"][run.task_id] += 1
                counts["inspected"][run.task_id] += kind == "inspect"
    return Behaviour(
        verify_before_finish=rate_by_task(counts["verified"], counts["done"], confidence=confidence),
        inspect_after_error=rate_by_task(counts["inspected"], counts["errors"], confidence=confidence),
    )
