"""A few trajectories as MLflow Traces. Few and short: a trace of thousands of spans hangs MLflow's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from infra.tracking import TrackedRun, TrackingError, tracking_errors

MAX_TRACES = 10
MAX_SPANS = 60
KEY_TAG = "longbreath.rollout_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """One turn or call: when it began (`start_s`, seconds since 1970), how long it took, what went in and came out."""

    name: str
    kind: Literal["LLM", "TOOL", "AGENT"]
    start_s: float
    duration_s: float
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One trajectory. `key` (the rollout id) makes it known: it is logged once. `tags` are searchable."""

    key: str
    name: str
    start_s: float
    duration_s: float
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    spans: Sequence[SpanRecord]
    tags: Mapping[str, str] = field(default_factory=dict)


def log_traces(run: TrackedRun, traces: Sequence[TraceRecord]) -> int:
    """Log trajectories to the run, those that are not there yet; how many were logged.

    A trace of more than MAX_SPANS spans keeps its first and last ones and says in `spans_left_out` how many it lost.
    Points MLflow's tracing of this process at the run's store. Raises TrackingError for more than MAX_TRACES a run.
    """
    import mlflow

    with tracking_errors(f"logging traces of run {run.run_key}", run.tracking.uri):
        present = _logged_keys(run)
        fresh = [trace for trace in traces if trace.key not in present]
        if len(present) + len(fresh) > MAX_TRACES:
            raise TrackingError(
                f"run {run.run_key} has {len(present)} traces and got {len(fresh)} more; want at most {MAX_TRACES} in "
                f"all: choose a few trajectories"
            )
        mlflow.set_tracking_uri(run.tracking.uri)
        for trace in fresh:
            _log(run, trace)
        mlflow.flush_trace_async_logging()
    return len(fresh)


def _logged_keys(run: TrackedRun) -> set[str]:
    found = run.tracking.client.search_traces(
        locations=[run.tracking.experiment_id],
        filter_string=f"metadata.`mlflow.sourceRun` = '{run.mlflow_run_id}'",
        include_spans=False,
    )
    return {trace.info.tags.get(KEY_TAG, "") for trace in found}


def _shortened(spans: Sequence[SpanRecord]) -> list[SpanRecord]:
    if len(spans) <= MAX_SPANS:
        return list(spans)
    return [*spans[: MAX_SPANS // 2], *spans[-MAX_SPANS // 2 :]]


def _log(run: TrackedRun, trace: TraceRecord) -> None:
    from mlflow import start_span_no_context

    kept = _shortened(trace.spans)
    root = start_span_no_context(
        trace.name,
        span_type="AGENT",
        inputs=dict(trace.inputs),
        attributes={"spans_left_out": len(trace.spans) - len(kept)},
        tags={**trace.tags, KEY_TAG: trace.key},
        metadata={"mlflow.sourceRun": run.mlflow_run_id},
        experiment_id=run.tracking.experiment_id,
        start_time_ns=_ns(trace.start_s),
    )
    for span in kept:
        child = start_span_no_context(
            span.name,
            span_type=span.kind,
            parent_span=root,
            inputs=dict(span.inputs),
            start_time_ns=_ns(span.start_s),
        )
        child.end(outputs=dict(span.outputs), end_time_ns=_ns(span.start_s + span.duration_s))
    root.end(outputs=dict(trace.outputs), end_time_ns=_ns(trace.start_s + trace.duration_s))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
