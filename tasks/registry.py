"""Tracking and promotion: what a run logs to MLflow, and the verdict that moves the champion."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.types import Group, Judged, TaskPool, Trajectory, Unjudged
from infra.digests import digest_folder, digest_of
from infra.registry import DIGEST_TAG, Registry
from infra.traces import MAX_TRACES, SpanRecord, TraceRecord, log_traces
from infra.tracking import TrackedRun, Tracking
from tasks.benchmark import BenchmarkConfig, Benchmarked
from tasks.policies import Policy
from tasks.stage import Desk, code_version
from training.evaluation.promotion import Measurement, PromotionRule, PromotionVerdict, decide

POLICY_VERSION_TAG = "longbreath.policy_version"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingConfig:
    """MLflow. `uri` empty: SQLite below the home folder. `model_name` is the registry's name of the policy.

    `traces`: how many trajectories are logged as Traces (at most 10).
    """

    uri: str = ""
    experiment: str = "longbreath"
    model_name: str = "longbreath-agent"
    traces: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.traces <= MAX_TRACES:
            raise ValueError(f"tracking.traces is {self.traces}; want 0 to {MAX_TRACES}")


def settings_of(config: Any, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of a configuration as ('section.field', value)."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


def start_run(desk: Desk, config: TrackingConfig, uri: str, *, params: Mapping[str, object]) -> TrackedRun:
    """The MLflow run of this fine-tune: made once, continued on retry and resume."""
    tracking = Tracking(uri, experiment=config.experiment)
    key = f"{desk.run_id}-{desk.salt}" if desk.salt else desk.run_id
    return tracking.start(key, name=desk.run_id, params=params, tags={"longbreath.code_version": code_version()})


def measurement(
    desk: Desk, done: Benchmarked, config: BenchmarkConfig, pool: TaskPool, *, name: str = "champion"
) -> Measurement:
    """A benchmark as promotion reads it."""
    excluded = sum(len(g.excluded) for g in done.groups(desk))
    return Measurement(
        policy_version=done.policy.version,
        weights_digest=digest_folder(done.policy.folder(desk)),
        evaluation_digest=digest_of([config, pool.digest]),
        rewards=done.rewards(desk),
        num_excluded=excluded + sum(isinstance(j.result, Unjudged) for j in done.verdicts(desk)),
        name=name,
    )


def judge_candidate(
    candidate: Measurement, champion: Measurement, config: BenchmarkConfig, pool: TaskPool
) -> PromotionVerdict:
    """Promote or refuse, by the lower end of the paired gain."""
    return decide(
        candidate,
        champion,
        rule=PromotionRule(min_gain=config.min_gain, min_tasks=min(30, len(pool.tasks)), confidence=config.confidence),
        horizons={t.task_id: t.horizon for t in pool.tasks},
        bands=config.bands,
        seed=config.seed,
    )


def open_registry(uri: str, config: TrackingConfig, home: Path) -> Registry:
    """The registry of the policy's model name, and its ledger in the home folder: one a model."""
    return Registry(uri, config.model_name, ledger=home / f"promotions-{config.model_name}.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A registered version, its model folder on this machine."""

    version: int
    policy_version: int
    sha256: str
    folder: Path


def fetch(registry: Registry, version: int, place: Path) -> Version:
    """A version's model folder below `place`, downloaded when it is not there. Raises TrackingError."""
    tags = registry.tags(version)
    folder = place / tags[DIGEST_TAG][:16]
    if not folder.exists():
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as half:
            registry.download(version, Path(half)).rename(folder)
    return Version(
        version=version, policy_version=int(tags[POLICY_VERSION_TAG]), sha256=tags[DIGEST_TAG], folder=folder
    )


def champion_at(registry: Registry, at_s: float, place: Path) -> Version | None:
    """The champion of a moment (seconds since 1970), by the ledger; None before the first promotion."""
    moves = [move for move in registry.history() if move.at_s <= at_s]
    return fetch(registry, moves[-1].champion, place) if moves else None


def rival_of(registry: Registry, sha256: str) -> int | None:
    """The version that a candidate of this content must beat: the champion, or the one whose place it took.

    None where there is none: then the candidate must beat what it was trained from.
    """
    champion = registry.aliases().get("champion")
    if champion is None or champion != registry.version_of(sha256):
        return champion
    return next((move.previous for move in registry.history() if move.champion == champion), None)


def settle(
    desk: Desk, run: TrackedRun, registry: Registry, policy: Policy, verdict: PromotionVerdict, folder: Path
) -> int:
    """Register the candidate, save the verdict, move the champion if it says so; the version.

    A version that was the champion before is left where it is: a run that is repeated must not undo a rollback.
    """
    path = folder / "verdict.json"
    path.write_text(json.dumps(dataclasses.asdict(verdict), indent=1))
    run.artifact(path)
    weights = policy.folder(desk)
    version = registry.register(
        run,
        weights,
        sha256=digest_folder(weights),
        tags={
            "longbreath.run_id": desk.run_id,
            POLICY_VERSION_TAG: str(policy.version),
            "longbreath.policy_key": policy.manifest.key,
            "longbreath.code_version": code_version(),
            "longbreath.evaluation": verdict.evaluation_digest,
            "longbreath.verdict": "promote" if verdict.promote else "refuse",
        },
    )
    registry.set_candidate(version)
    if verdict.promote and not any(row.champion == version for row in registry.history()):
        registry.promote(version, reason=verdict.reasons[0], at_s=time.time())
    run.tag({"longbreath.verdict": "promote" if verdict.promote else "refuse", "longbreath.version": str(version)})
    return version


def log_some_traces(run: TrackedRun, groups: Sequence[Group], verdicts: Sequence[Judged], count: int) -> None:
    """A few trajectories as MLflow Traces, the longest first: they are the ones worth reading."""
    by_id = {j.rollout_id: j for j in verdicts}
    members = sorted((m for g in groups for m in g.members), key=lambda m: (-len(m.turns), m.rollout_id))
    log_traces(run, [_trace(m, by_id[m.rollout_id]) for m in members[:count]])


def _trace(trajectory: Trajectory, judged: Judged) -> TraceRecord:
    start = time.time()
    at = start
    spans = []
    for turn in trajectory.turns:
        spans.append(
            SpanRecord(
                name=f"turn {turn.index + 1}",
                kind="TOOL",
                start_s=at,
                duration_s=turn.duration_s,
                inputs={"thought": turn.thought, "command": turn.action},
                outputs={"observation": turn.observation, "exit_code": turn.exit_code, "error": turn.error_class},
            )
        )
        at += turn.duration_s
    return TraceRecord(
        key=trajectory.rollout_id,
        name=trajectory.task_id,
        start_s=start,
        duration_s=trajectory.usage.wall_s,
        inputs={"task": trajectory.task_id},
        outputs={"final": trajectory.final_payload, "reward": judged.reward, "status": trajectory.status},
        spans=spans,
        tags={"longbreath.passed": str(judged.passed).lower()},
    )
