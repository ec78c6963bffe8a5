"""What Prefect's page shows of a run, and what its automations can react to.

Artifacts: the tasks chosen (table), each iteration (markdown), how far the run is (progress), where to look (links).
Events: `longbreath.zero-gradient`, `longbreath.promoted`, `longbreath.refused`; see `flows.automations`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.pass_rates import decision_rows
from tasks.report import TrainingRecord
from tasks.stage import Desk
from training.evaluation.promotion import PromotionVerdict

ZERO_GRADIENT, PROMOTED, REFUSED = "longbreath.zero-gradient", "longbreath.promoted", "longbreath.refused"


def publish_iteration(desk: Desk, record: TrainingRecord, iterations: int) -> None:
    """What was chosen and why, how it went, how far the run is; an event when the zero-gradient alarm rings."""
    from prefect.artifacts import create_markdown_artifact, create_progress_artifact, create_table_artifact

    key = f"{_key(desk)}-{record.number + 1:03d}"
    create_table_artifact(key=f"selection-{key}", table=decision_rows(record.selection.decisions))
    create_markdown_artifact(key=f"iteration-{key}", markdown=_told(desk, record))
    done = 100 * (record.number + 1) / iterations
    create_progress_artifact(done, key=f"progress-{_key(desk)}", description=f"{record.number + 1} of {iterations}")
    if record.zero_gradient.alarm:
        _emit(desk, ZERO_GRADIENT, {"iteration": record.number + 1, "alarm": record.zero_gradient.alarm})


def _told(desk: Desk, record: TrainingRecord) -> str:
    zero = record.zero_gradient
    passed = sum(v.passed for v in record.verdicts)
    lines = [
        f"## Iteration {record.number + 1} of {desk.run_id}",
        f"- {passed} of {len(record.verdicts)} rollouts passed",
        f"- groups without gradient: {zero.zero_gradient_share:.0%} "
        f"({zero.all_fail.groups} all fail, {zero.all_pass.groups} all pass, {zero.mixed.groups} mixed)",
        f"- {zero.alarm}" if zero.alarm else "- no alarm",
    ]
    return "\n".join(lines)


def publish_end(desk: Desk, verdict: PromotionVerdict, *, report: Path, data_docs: Path, mlflow_page: str) -> None:
    """Where to look, and the verdict as markdown and as an event."""
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    create_link_artifact(report.as_uri(), key=f"report-{_key(desk)}", link_text="The report of the run")
    docs = (data_docs / "index.html").as_uri()
    create_link_artifact(docs, key=f"data-docs-{_key(desk)}", link_text="Data Docs of the last iteration")
    if mlflow_page.startswith(("http://", "https://")):
        create_link_artifact(mlflow_page, key=f"mlflow-{_key(desk)}", link_text="The run in MLflow")
    said = "promoted" if verdict.promote else "refused"
    lines = [f"## {desk.run_id}: {said}", *(f"- {reason}" for reason in verdict.reasons)]
    create_markdown_artifact(key=f"verdict-{_key(desk)}", markdown="\n".join(lines))
    _emit(desk, PROMOTED if verdict.promote else REFUSED, {"reasons": list(verdict.reasons), "report": str(report)})


def _key(desk: Desk) -> str:
    return desk.run_id.lower().replace("_", "-")


def _emit(desk: Desk, event: str, payload: dict[str, Any]) -> None:
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"longbreath.run.{desk.run_id}", "prefect.resource.name": desk.run_id}
    emit_event(event=event, resource=resource, payload=payload)
