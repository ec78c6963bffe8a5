"""The order of a run's stages, and nothing else. Who runs them (`Runner`) is the caller's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from environments.types import Group, Judged, TaskPool
from flows.config import RunConfig
from flows.shards import roll_out_plan
from infra.manifest import Manifest
from tasks.benchmark import BenchmarkConfig, Benchmarked, benchmark
from tasks.judge import judge_rollouts, read_judged
from tasks.pass_rates import (
    Curriculum,
    fold,
    new_evidence,
    read_selection,
    requests_of,
    select,
    zero_gradient,
)
from tasks.policies import Policy
from tasks.quality import check_quality
from tasks.report import TrainingRecord
from tasks.rollouts import RolloutPlan, read_groups
from tasks.stage import Desk, Runner
from tasks.train import train
from training.curriculum.base import Evidence, Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands: its policy and what is known of its tasks."""

    policy: Policy
    curriculum: Curriculum


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rollouts of one selection, judged and found sound."""

    selection: Selection
    rollouts: Manifest
    judged: Manifest
    quality: Manifest
    groups: tuple[Group, ...]
    verdicts: tuple[Judged, ...]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the groups tell about their tasks."""
        return new_evidence(self.selection, self.groups, self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one iteration did. `probes` is None where the strategy measures by training rollouts alone."""

    before: RunState
    after: RunState
    probes: Measured | None
    training: Measured
    record: TrainingRecord


def iterate(desk: Desk, run: Runner, config: RunConfig, state: RunState, number: int) -> Iteration:
    """Select, roll out, judge, check, train: the next policy and what was learnt of the tasks."""
    begun = state
    probes = _measure(desk, run, config, state, number, probes=True)
    if probes is not None:
        state = _folded(desk, run, state, probes, number)
    training = _measure(desk, run, config, state, number, probes=False)
    if training is None:
        raise RuntimeError(f"iteration {number + 1}: the curriculum chose nothing; widen the pool or its band")
    folded = _folded(desk, run, state, training, number)
    zero = zero_gradient(training.evidence, training.selection, config.curriculum)
    desk.progress.show(zero_gradient_share=zero.zero_gradient_share)
    policy = Policy(
        manifest=run(
            train(
                desk,
                state.policy,
                training.rollouts,
                training.judged,
                section=config.training,
                sampling=config.rollouts.sampling(config.seed),
                iteration=number,
            )
        ),
        version=state.policy.version + 1,
    )
    return Iteration(
        before=begun,
        after=replace(folded, policy=policy),
        probes=probes,
        training=training,
        record=TrainingRecord(
            number=number,
            policy=policy,
            selection=training.selection,
            groups=training.groups,
            verdicts=training.verdicts,
            quality=training.quality,
            measured_apart=0 if probes is None else sum(len(g.members) for g in probes.groups),
            zero_gradient=zero,
        ),
    )


def benchmark_policy(
    desk: Desk,
    run: Runner,
    config: RunConfig,
    policy: Policy,
    held_out: TaskPool,
    label: str,
    rules: BenchmarkConfig | None = None,
) -> Benchmarked:
    """Measure a policy on the held-out tasks, by the configuration's benchmark or by other `rules`."""
    return benchmark(
        desk,
        run,
        policy,
        held_out,
        config=rules or config.benchmark,
        rollouts=config.rollouts,
        gates=config.gates,
        label=label,
    )


def _measure(
    desk: Desk, run: Runner, config: RunConfig, state: RunState, number: int, *, probes: bool
) -> Measured | None:
    version, pool = state.policy.version, state.curriculum.pool
    chosen = run(
        select(desk, state.curriculum, config.curriculum, policy_version=version, iteration=number, probes=probes)
    )
    selection = read_selection(desk, chosen)
    if not selection.decisions:
        return None
    plan = RolloutPlan(
        suite=config.pool.suite,
        policy=state.policy,
        requests=requests_of(selection, pool, prefix=f"{'p' if probes else 'i'}{number:03d}-"),
        iteration=number,
        sampling=config.rollouts.sampling(config.seed),
        label="probe" if probes else "roll out",
    )
    rollouts = roll_out_plan(desk, run, config, plan, (chosen,))
    judged = run(
        judge_rollouts(
            desk, rollouts, pool, gates=config.gates, concurrency=config.rollouts.concurrency, iteration=number
        )
    )
    quality = run(check_quality(desk, rollouts, judged, newest_version=version, iteration=number))
    verdicts = tuple(read_judged(desk, judged))
    desk.progress.show(pass_rate=sum(v.passed for v in verdicts) / max(1, len(verdicts)))
    return Measured(
        selection=selection,
        rollouts=rollouts,
        judged=judged,
        quality=quality,
        groups=tuple(read_groups(desk, rollouts)),
        verdicts=verdicts,
    )


def _folded(desk: Desk, run: Runner, state: RunState, measured: Measured, number: int) -> RunState:
    manifest = run(fold(desk, state.curriculum, measured.evidence, measured.judged, iteration=number))
    return replace(state, curriculum=replace(state.curriculum, folded=manifest))
