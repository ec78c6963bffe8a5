"""The report of a run: everything it shows, gathered into one record, and the page made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from environments.suites.service_repair.acts import act_kind
from environments.types import Group, Judged, TaskPool
from infra import records
from infra.manifest import Manifest
from tasks.benchmark import BenchmarkConfig, Benchmarked
from tasks.policies import Policy
from tasks.stage import Desk
from tasks.train import read_report
from training.curriculum.base import Selection
from training.curriculum.monitor import ZeroGradientReport
from training.evaluation.comparison import Comparison, compare
from training.evaluation.promotion import PromotionVerdict
from training.evaluation.recorded import recorded_of
from training.evaluation.report import render_plots
from training.evaluation.report import write_report as write_page
from training.evaluation.report_data import (
    IterationPoint,
    NotWhole,
    PolicyView,
    ReportData,
    Spend,
    StageTime,
    StepView,
    TrajectoryView,
)
from training.evaluation.report_views import (
    choose_examples,
    iteration_point,
    policy_view,
    task_labels,
    trajectory_view,
)
from training.evaluation.runs import runs_of
from training.reports import RATIO_EDGES

DATA, PAGE, PLOTS = "report.json", "report.html", "plots"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What one iteration left for the report. `policy` is the policy after it.

    `quality`: the check of its data, with Data Docs. `measured_apart`: rollouts that only measured, beside `groups`
    (the literal rule's look at the whole pool).
    """

    number: int
    policy: Policy
    selection: Selection
    groups: tuple[Group, ...]
    verdicts: tuple[Judged, ...]
    quality: Manifest
    measured_apart: int
    zero_gradient: ZeroGradientReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a run left for the report. `facts` are (name, value) pairs for the record."""

    title: str
    facts: tuple[tuple[str, str], ...]
    train: TaskPool
    held_out: TaskPool
    benchmark: BenchmarkConfig
    before: Benchmarked
    after: Benchmarked
    greedy: tuple[Benchmarked, Benchmarked] | None
    iterations: tuple[TrainingRecord, ...]
    verdict: PromotionVerdict


def compare_benchmarks(
    desk: Desk, before: Benchmarked, after: Benchmarked, config: BenchmarkConfig, pool: TaskPool
) -> Comparison:
    """Two benchmarks of one config, paired by task."""
    return compare(
        before.rewards(desk),
        after.rewards(desk),
        horizons={t.task_id: t.horizon for t in pool.tasks},
        bands=config.bands,
        seed=config.seed,
        confidence=config.confidence,
    )


def iteration_metrics(desk: Desk, record: TrainingRecord) -> dict[str, float]:
    """One iteration as flat numbers for MLflow."""
    report = read_report(desk, record.policy)
    judged = [v for v in record.verdicts if v.reward is not None]
    wanted = (
        "loss", "ratio_mean", "ratio_max", "clipped_fraction", "entropy", "grad_norm", "kl_to_behaviour",
        "kl_to_start", "rare_token_gradient_share", "tokens_per_s", "num_loss_tokens", "engine_gap_max",
    )  # fmt: skip
    return {
        **{f"train/{name}": float(report[name]) for name in wanted if report.get(name) is not None},
        **_spread_metrics(_step_view(report)),
        **{f"groups/{name}": float(len(report["groups"][name])) for name in ("incomplete", "too_small")},
        "rollouts/unjudged": float(len(report["groups"]["unjudged"])),
        **recorded_of(m for g in record.groups for m in g.members).metrics(),
        "rollouts/pass_rate": sum(v.passed for v in judged) / max(1, len(judged)),
        "rollouts/count": float(sum(len(g.members) for g in record.groups)),
        "rollouts/infra_faults": float(sum(len(g.excluded) for g in record.groups)),
        **record.zero_gradient.metrics(),
    }


def _spread_metrics(step: StepView | None) -> dict[str, float]:
    """How gradient and ratios are spread over tokens; nothing for a step that was skipped."""
    if step is None:
        return {}
    tokens = max(1, sum(step.ratio_histogram))
    return {
        **{f"train/gradient_share/tenth_{n:02d}": s for n, s in enumerate(step.decile_gradient_share, start=1)},
        **{
            f"train/ratio_share/{low:g}-{high:g}": count / tokens
            for (low, high), count in zip(pairwise(RATIO_EDGES), step.ratio_histogram, strict=True)
        },
        **{f"train/rare_words/{word}": float(count) for word, count in step.rare_word_counts},
    }


def spend(iterations: Sequence[TrainingRecord]) -> Spend:
    """Rollouts used, against what uniform choice would have needed for as many groups that carry gradient.

    Each rollout counts once: as a probe where its task was chosen to be measured, else as training. Uniform's share of
    mixed groups is estimated by the mean, over the tasks that this run visited, of a task's own share of mixed groups.
    Tasks that were never drawn are left out, so it says little of a pool that was hardly seen.
    """
    sizes = [len(g.members) for r in iterations for g in r.groups]
    probed = sum(_probed(r) for r in iterations)
    mixed = sum(r.zero_gradient.mixed.groups for r in iterations)
    share = _uniform_mixed_share(iterations)
    return Spend(
        training=sum(sizes) - probed,
        probes=probed + sum(r.measured_apart for r in iterations),
        uniform_equivalent=round(mixed / share * sum(sizes) / len(sizes)) if share else None,
    )


def _probed(record: TrainingRecord) -> int:
    """Rollouts in the groups of tasks that the selection chose to measure."""
    measured = {d.task_id for d in record.selection.decisions if d.kind == "probe"}
    return sum(len(g.members) for g in record.groups if g.task_id in measured)


def _uniform_mixed_share(iterations: Sequence[TrainingRecord]) -> float | None:
    """Mean over visited tasks of a task's own share of mixed groups; None without groups."""
    seen: dict[str, list[bool]] = {}
    for record in iterations:
        rewards: dict[str, set[float]] = {}
        for judged in record.verdicts:
            if judged.reward is not None:
                rewards.setdefault(judged.group_id, set()).add(judged.reward)
        for group in record.groups:
            seen.setdefault(group.task_id, []).append(len(rewards.get(group.group_id, ())) > 1)
    shares = [sum(mixed) / len(mixed) for mixed in seen.values()]
    return sum(shares) / len(shares) if shares else None


def write_report(data: ReportData, folder: Path) -> Path:
    """Write the record (`report.json`) and the page made from it alone (`report.html`); the page's path."""
    (folder / DATA).write_bytes(records.to_json(data))
    write_page(data, folder / PAGE)
    return folder / PAGE


def write_plots(data: ReportData, folder: Path) -> Path:
    """Write the report's main charts as SVG files below `folder`; the folder they are in."""
    plots = folder / PLOTS
    plots.mkdir(exist_ok=True)
    for name, picture in render_plots(data).items():
        (plots / f"{name}.svg").write_text(picture)
    return plots


def report_data(desk: Desk, run: RunRecord, stage_s: Mapping[str, float]) -> ReportData:
    """Everything the page shows. `stage_s`: wall time by stage, in seconds."""
    greedy = run.greedy
    return ReportData(
        title=run.title,
        facts=run.facts,
        comparison=compare_benchmarks(desk, run.before, run.after, run.benchmark, run.held_out),
        greedy=compare_benchmarks(desk, *greedy, run.benchmark, run.held_out) if greedy else None,
        verdict=run.verdict,
        before=_view(desk, run, "before", run.before),
        after=_view(desk, run, "after", run.after),
        tasks=task_labels(run.train.tasks),
        iterations=tuple(_point(desk, run, record) for record in run.iterations),
        spend=spend(run.iterations),
        stages=tuple(StageTime(name=name, wall_s=wall_s) for name, wall_s in stage_s.items()),
        trajectories=_examples(desk, run),
    )


def _view(desk: Desk, run: RunRecord, label: str, done: Benchmarked) -> PolicyView:
    tasks = {t.task_id: t for t in run.held_out.tasks}
    members = [m for g in done.groups(desk) for m in g.members]
    return policy_view(
        label,
        done.policy.version,
        runs_of(members, done.verdicts(desk), tasks),
        act_kind,
        bands=run.benchmark.bands,
        seed=run.benchmark.seed,
        confidence=run.benchmark.confidence,
    )


def _step_view(report: Mapping[str, Any]) -> StepView | None:
    """None for a step that was skipped."""
    if "skipped" in report:
        return None
    return StepView(
        kl_to_behaviour=report["kl_to_behaviour"],
        kl_to_start=report["kl_to_start"],
        rare_token_gradient_share=report["rare_token_gradient_share"],
        rare_word_counts=tuple(report["rare_word_counts"].items()),
        decile_gradient_share=tuple(report["decile_gradient_share"]),
        ratio_histogram=tuple(report["ratio_histogram"]),
    )


def _not_whole(report: Mapping[str, Any]) -> NotWhole:
    return NotWhole(**{name: len(report["groups"][name]) for name in ("incomplete", "too_small", "unjudged")})


def _point(desk: Desk, run: RunRecord, record: TrainingRecord) -> IterationPoint:
    report = read_report(desk, record.policy)
    return iteration_point(
        record.number,
        record.policy.version - 1,
        [m for g in record.groups for m in g.members],
        record.verdicts,
        run.train.tasks,
        act_kind,
        held_out=None,
        step=_step_view(report),
        not_whole=_not_whole(report),
        confidence=run.benchmark.confidence,
    )


def _examples(desk: Desk, run: RunRecord) -> tuple[TrajectoryView, ...]:
    sides = {"before": run.before, "after": run.after}
    verdicts = {side: {j.task_id: j for j in done.verdicts(desk)} for side, done in sides.items()}
    members = {side: {m.task_id: m for g in done.groups(desk) for m in g.members} for side, done in sides.items()}
    tasks = {t.task_id: t for t in run.held_out.tasks}
    chosen = choose_examples(
        {task: j.passed for task, j in verdicts["before"].items()},
        {task: j.passed for task, j in verdicts["after"].items()},
        {t.task_id: t.horizon for t in run.held_out.tasks},
    )
    pieces = _pieces(run.after.policy.folder(desk))
    return tuple(
        trajectory_view(
            f"{side} training, {tasks[task].horizon} turns",
            members[side][task],
            verdicts[side][task],
            tasks[task],
            pieces,
        )
        for side, task in chosen
    )


def _pieces(folder: Path) -> Callable[[Sequence[int]], list[str]]:
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda ids: [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
