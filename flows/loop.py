"""The order of a run's stages, and nothing else. Who runs them (`Runner`) is the caller's choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from environments.types import Group, Judged, TaskPool
from flows.config import RunConfig
from flows.probes import measure_apart
from flows.shards import roll_out_plan
from infra.manifest import Manifest
from tasks.benchmark import BenchmarkConfig, Benchmarked, benchmark
from tasks.judge import judge_rollouts, read_judged
from tasks.pass_rates import (
    Curriculum,
    Request,
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
from training.curriculum.monitor import ZeroGradientReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands: its policy and the one it started from, what is known of its tasks, and what the groups of
    each iteration came to."""

    policy: Policy
    start: Policy
    curriculum: Curriculum
    watched: tuple[ZeroGradientReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Rollouts of one selection, judged and found sound. `found` are groups that were in the store already."""

    selection: Selection
    rollouts: Manifest
    judged: Manifest
    quality: Manifest
    groups: tuple[Group, ...]
    verdicts: tuple[Judged, ...]
    found: frozenset[str] = frozenset()

    @property
    def num_spent(self) -> int:
        """Rollouts that this selection cost."""
        return sum(len(g.members) for g in self.groups if g.group_id not in self.found)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the groups tell about their tasks."""
        return new_evidence(self.selection, self.groups, self.verdicts)

    @property
    def num_mixed(self) -> int:
        """Groups that carry gradient: their rewards differ."""
        rewards: dict[str, set[float]] = {}
        for item in self.evidence:
            rewards.setdefault(item.group_id, set()).add(item.reward)
        return sum(len(seen) > 1 for seen in rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """What one iteration did. `probes` is None where the strategy measures by training rollouts alone.

    `training` has one entry, and one more for each refill.
    """

    before: RunState
    after: RunState
    probes: Measured | None
    training: tuple[Measured, ...]
    record: TrainingRecord


def iterate(desk: Desk, run: Runner, config: RunConfig, state: RunState, number: int) -> Iteration:
    """Select, roll out, judge, check, train: the next policy and what was learnt of the tasks."""
    begun = state
    ask = Request(policy_version=state.policy.version, iteration=number, groups=None)
    probes = _measure(desk, run, config, state, ask)
    if probes is not None:
        state = _folded(desk, run, state, probes, number)
    training, state = _gather(desk, run, config, state, number)
    report = zero_gradient(_evidence(training), _selection(training), config.curriculum, state.watched)
    desk.progress.show(zero_gradient_share=report.zero_gradient_share)
    policy = Policy(
        manifest=run(
            train(
                desk,
                state.policy,
                [(m.rollouts, m.judged) for m in training],
                start=state.start,
                section=config.training,
                sampling=config.rollouts.sampling(config.seed),
                iteration=number,
            )
        ),
        version=state.policy.version + 1,
    )
    return Iteration(
        before=begun,
        after=replace(state, policy=policy, watched=(*state.watched, report)),
        probes=probes,
        training=training,
        record=_record(probes, training, policy, report, number),
    )


def on_pool(desk: Desk, state: RunState, pool: TaskPool) -> RunState:
    """Go on with this edition of the pool, and say what became of its tasks."""
    if pool.digest == state.curriculum.pool.digest:
        return state
    curriculum = replace(state.curriculum, pool=pool)
    for line in curriculum.change(desk).lines():
        desk.progress.say(f"[yellow]the task pool has changed: {line}[/]")
    return replace(state, curriculum=curriculum)


def _gather(
    desk: Desk, run: Runner, config: RunConfig, state: RunState, number: int
) -> tuple[tuple[Measured, ...], RunState]:
    """The groups to train on: a selection, then more for those without gradient, if the strategy wants refills."""
    rounds: list[Measured] = []
    for refill in range(1 + state.curriculum.strategy.max_refills):
        missing = config.curriculum.tasks_per_iteration - sum(m.num_mixed for m in rounds)
        if missing <= 0:
            break
        ask = Request(policy_version=state.policy.version, iteration=number, groups=missing, refill=refill)
        measured = _measure(desk, run, config, state, ask)
        if measured is None:
            break
        rounds.append(measured)
        state = _folded(desk, run, state, measured, number)
    if not rounds:
        raise RuntimeError(f"iteration {number + 1}: the curriculum chose nothing; widen the pool or its band")
    return tuple(rounds), state


def _selection(training: tuple[Measured, ...]) -> Selection:
    return training[0].selection.with_refills([m.selection for m in training[1:]])


def _evidence(training: tuple[Measured, ...]) -> tuple[Evidence, ...]:
    return tuple(e for m in training for e in m.evidence)


def _record(
    probes: Measured | None, training: tuple[Measured, ...], policy: Policy, zero: ZeroGradientReport, number: int
) -> TrainingRecord:
    """Every rollout of the iteration is in it, those of refills too."""
    return TrainingRecord(
        number=number,
        policy=policy,
        selection=_selection(training),
        groups=tuple(g for m in training for g in m.groups),
        verdicts=tuple(v for m in training for v in m.verdicts),
        quality=training[0].quality,
        measured_apart=0 if probes is None else probes.num_spent,
        zero_gradient=zero,
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


def _measure(desk: Desk, run: Runner, config: RunConfig, state: RunState, ask: Request) -> Measured | None:
    pool, number = state.curriculum.pool, ask.iteration
    chosen = run(select(desk, state.curriculum, ask))
    selection = read_selection(desk, chosen)
    if not selection.decisions:
        return None
    plan = RolloutPlan(
        suite=config.pool.suite,
        policy=state.policy,
        requests=requests_of(selection, pool, prefix=ask.prefix),
        iteration=number,
        sampling=config.rollouts.sampling(config.seed),
        label=ask.label,
    )
    if ask.groups is None:
        rollouts, found = measure_apart(desk, run, config, plan, chosen)
    else:
        rollouts, found = roll_out_plan(desk, run, config, plan, (chosen,)), frozenset()
    groups = tuple(read_groups(desk, rollouts))
    judged = run(
        judge_rollouts(
            desk, rollouts, pool, gates=config.gates, concurrency=config.rollouts.concurrency, iteration=number
        )
    )
    # What was found may bear the version that these weights had in another run.
    others = (m.policy_versions[1] for g in groups if g.group_id in found for m in g.members)
    newest = max((ask.policy_version, *others))
    quality = run(check_quality(desk, rollouts, judged, newest_version=newest, iteration=number))
    verdicts = tuple(read_judged(desk, judged))
    desk.progress.show(pass_rate=sum(v.passed for v in verdicts) / max(1, len(verdicts)))
    return Measured(
        selection=selection,
        rollouts=rollouts,
        judged=judged,
        quality=quality,
        groups=groups,
        verdicts=verdicts,
        found=found,
    )


def _folded(desk: Desk, run: Runner, state: RunState, measured: Measured, number: int) -> RunState:
    manifest = run(fold(desk, state.curriculum, measured.evidence, measured.judged, iteration=number))
    return replace(state, curriculum=replace(state.curriculum, folded=manifest))
