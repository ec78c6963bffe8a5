"""The recurring run: measure, train n times, benchmark, promote or refuse. Order, retries, schedules; no more."""

from __future__ import annotations

import contextlib
import json
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger

from environments.types import TaskPool
from flows.artifacts import publish_end, publish_iteration
from flows.config import RunConfig
from flows.editions import Editions, note_iteration, open_editions
from flows.engine import FlowLog, PrefectRunner, end_orphaned_servers, wait_for_prefect
from flows.home import Home, note_finished, open_desk
from flows.loop import RunState, benchmark_policy, iterate, on_pool
from flows.noted import STAGES, Noted
from flows.promote import reigning
from flows.results import result_of
from infra import records
from infra.registry import Registry
from infra.tracking import TrackedRun
from tasks.benchmark import Benchmarked
from tasks.pass_rates import Curriculum
from tasks.policies import Policy, adopt
from tasks.pools import make_pools
from tasks.progress import Progress
from tasks.quality import DOCS
from tasks.registry import (
    judge_candidate,
    log_some_traces,
    measurement,
    open_registry,
    settings_of,
    settle,
    start_run,
)
from tasks.report import (
    PLOTS,
    RunRecord,
    TrainingRecord,
    iteration_metrics,
    report_data,
    write_plots,
    write_report,
)
from tasks.stage import Desk, Runner, code_version
from tasks.train import check_section

_progress: ContextVar[Progress] = ContextVar("progress")


def run_finetune(home: Path, config: RunConfig, *, progress: Progress, fresh: bool = False) -> dict[str, Any]:
    """Run the flow in this process and return its result (the documented keys of `--json`)."""
    token = _progress.set(progress)
    try:
        end_orphaned_servers(Home(home).prefect)
        wait_for_prefect(progress)
        named = finetune.with_options(flow_run_name=f"{config.run_id}{' fresh' if fresh else ''}")
        result: dict[str, Any] = named(home=str(home), config=records.to_json(config).decode(), fresh=fresh)
        return result
    finally:
        _progress.reset(token)


@flow(name="finetune", validate_parameters=False)  # type: ignore[untyped-decorator]
def finetune(config: str, home: str | None = None, fresh: bool = False) -> dict[str, Any]:
    """The flow, deployable: `config` is a whole configuration as JSON, as `config.json` of a run's folder is.

    `home` (default: LONGBREATH_HOME) is where runs are kept.
    """
    progress = _progress.get(None) or FlowLog(get_run_logger())
    settings = records.from_json(RunConfig, config.encode(), where="parameter config")
    place = Home.at(home)
    with open_desk(place, settings, progress, fresh=fresh) as desk:
        return _finetune(place, desk, settings)


def _finetune(home: Home, desk: Desk, config: RunConfig) -> dict[str, Any]:
    started = time.monotonic()
    folder = home.run(desk.run_id)
    engine = PrefectRunner(desk)
    (folder / STAGES).unlink(missing_ok=True)
    run = Noted(engine, folder / STAGES)
    check_section(config.training)
    uri = config.tracking.uri or home.mlflow_uri
    registry = open_registry(uri, config.tracking, home.root)
    with _tracked(desk, config, uri) as tracked:
        record, version = _trained_and_judged(home, desk, run, config, tracked, registry)
        data = report_data(desk, record, run.wall_s)
        report = write_report(data, folder)
        data_docs = desk.store.path(record.iterations[-1].quality) / DOCS
        tracked.artifact(report)
        tracked.artifact(write_plots(data, folder), PLOTS)
        tracked.artifact(data_docs, "data_docs")
        publish_end(desk, record.verdict, report=report, data_docs=data_docs, mlflow_page=uri)
        result = result_of(
            desk.run_id,
            record,
            data,
            report=report,
            wall_s=time.monotonic() - started,
            stage_s=run.wall_s,
            overhead_s=engine.overhead_s,
            home=home.root,
            mlflow_uri=uri,
            model_uri=f"models:/{config.tracking.model_name}/{version}",
        )
    (folder / "result.json").write_text(json.dumps(result, indent=1))
    note_finished(home, desk.run_id)
    return result


def _trained_and_judged(
    home: Home, desk: Desk, run: Runner, config: RunConfig, tracked: TrackedRun, registry: Registry
) -> tuple[RunRecord, int]:
    """The whole run up to its verdict: its record, and the registered version of what it made."""
    pools = make_pools(desk.workshop.suite(config.pool.suite), config.pool)
    start = Policy(manifest=run(adopt(config.policy.path, digest=config.policy.digest)), version=0)
    before, *greedy_before = _benchmarks(desk, run, config, start, pools.held_out, "before")
    folder = home.run(desk.run_id)
    editions = open_editions(folder, pools.train, desk.salt)
    curriculum = Curriculum(strategy=config.strategy(), pool=editions.at(0), folded=None)
    state = RunState(policy=start, start=start, curriculum=curriculum)
    policy, done = _iterations(desk, run, config, state, editions, folder, tracked)
    after, *greedy_after = _benchmarks(desk, run, config, policy, pools.held_out, "after")
    rival = reigning(home, desk, run, config, registry, candidate=policy, before=before, held_out=pools.held_out)
    verdict = judge_candidate(
        measurement(desk, after, config.benchmark, pools.held_out),
        rival,
        config.benchmark,
        pools.held_out,
    )
    version = settle(desk, tracked, registry, policy, verdict, folder)
    log_some_traces(tracked, after.groups(desk), after.verdicts(desk), config.tracking.traces)
    record = RunRecord(
        title=f"{config.name}: {config.pool.suite}",
        facts=_facts(desk, config, registry.uri),
        train=editions.every_task,
        held_out=pools.held_out,
        benchmark=config.benchmark,
        before=before,
        after=after,
        greedy=(greedy_before[0], greedy_after[0]) if config.benchmark.greedy else None,
        iterations=done,
        verdict=verdict,
    )
    return record, version


def _iterations(
    desk: Desk,
    run: Runner,
    config: RunConfig,
    state: RunState,
    editions: Editions,
    folder: Path,
    tracked: TrackedRun,
) -> tuple[Policy, tuple[TrainingRecord, ...]]:
    """Train as often as the configuration says: the last policy, and a record of each iteration."""
    done: list[TrainingRecord] = []
    for number in range(config.iterations):
        iteration = iterate(desk, run, config, on_pool(desk, state, editions.at(number)), number)
        state = iteration.after
        note_iteration(folder, editions, number)
        done.append(iteration.record)
        tracked.metrics(iteration_metrics(desk, done[-1]), step=number, at_s=time.time())
        publish_iteration(desk, done[-1], config.iterations)
        desk.progress.say(_said(done[-1], config.iterations))
    return state.policy, tuple(done)


@contextlib.contextmanager
def _tracked(desk: Desk, config: RunConfig, uri: str) -> Any:
    desk.progress.say(f"MLflow: {uri}")
    tracked: TrackedRun = start_run(desk, config.tracking, uri, params=dict(settings_of(config)))
    try:
        yield tracked
    except BaseException:
        tracked.finish("FAILED")
        raise
    tracked.finish()


def _benchmarks(
    desk: Desk, run: Runner, config: RunConfig, policy: Policy, held_out: TaskPool, when: str
) -> list[Benchmarked]:
    """Sampled as in rollouts and, where the configuration asks for it, greedily."""
    done = [benchmark_policy(desk, run, config, policy, held_out, f"benchmark {when}")]
    if config.benchmark.greedy:
        rules = config.benchmark.greedily
        done.append(benchmark_policy(desk, run, config, policy, held_out, f"benchmark {when}, greedy", rules))
    return done


def _facts(desk: Desk, config: RunConfig, uri: str) -> tuple[tuple[str, str], ...]:
    return (
        ("run", desk.run_id),
        ("suite", config.pool.suite),
        ("harness", config.rollouts.harness),
        ("loss", config.training.loss),
        ("curriculum", config.curriculum.strategy),
        ("seed", str(config.seed)),
        ("code", code_version()),
        ("MLflow", uri),
    )


def _said(record: TrainingRecord, iterations: int) -> str:
    judged = [v for v in record.verdicts if v.reward is not None]
    passed = sum(v.passed for v in judged) / max(1, len(judged))
    return (
        f"iteration {record.number + 1}/{iterations}: {len(judged)} rollouts, {passed:.0%} passed, "
        f"{record.zero_gradient.zero_gradient_share:.0%} of groups without gradient"
    )
