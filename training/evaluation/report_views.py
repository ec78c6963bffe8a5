"""From records to the parts of a report."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from environments.types import Judged, TaskSpec, Trajectory, Verdict
from training.evaluation.behaviour import ActKind, measure_behaviour
from training.evaluation.drift import measure_drift
from training.evaluation.estimates import Estimate
from training.evaluation.first_error import context_by_turn, cumulative_incidence, errors_by_turn, first_event
from training.evaluation.recorded import recorded_of
from training.evaluation.report_data import (
    GateCount,
    GroupShares,
    IterationPoint,
    NotWhole,
    PolicyView,
    StepView,
    TaskLabel,
    Token,
    TrajectoryView,
    TurnView,
)
from training.evaluation.runs import Run, runs_of
from training.evaluation.success import (
    half_success_horizon,
    pass_hat_k,
    solved_by_task,
    success_by_horizon,
    success_rate,
)

Pieces = Callable[[Sequence[int]], Sequence[str]]
"""Token ids -> one text for each, as a tokenizer shows them."""


def policy_view(
    label: str,
    policy_version: int,
    runs: Sequence[Run],
    act_kind: Callable[[str], ActKind],
    *,
    bands: Sequence[int],
    seed: int,
    confidence: float = 0.95,
) -> PolicyView:
    """All that is said of one policy on the held-out tasks. Raises ValueError on no runs."""
    drift = measure_drift(runs, seed=seed, confidence=confidence)
    several = len({run.horizon for run in runs}) > 1
    solved = list(solved_by_task(runs).values())
    return PolicyView(
        label=label,
        policy_version=policy_version,
        success=success_rate(runs, confidence=confidence),
        strict=success_rate(runs, strict=True, confidence=confidence),
        all_of_k=tuple(pass_hat_k(solved, k) for k in range(1, min(n for _, n in solved) + 1)),
        bands=success_by_horizon(runs, bands, confidence=confidence),
        half_horizon=half_success_horizon(runs, seed=seed, confidence=confidence) if several else None,
        step_success=1 - drift.error_rate.mean if drift.error_rate is not None else None,
        drift=drift,
        first_error=cumulative_incidence([first_event(run) for run in runs], confidence=confidence),
        errors=errors_by_turn(runs),
        context_tokens=context_by_turn(runs),
        behaviour=measure_behaviour(runs, act_kind, confidence=confidence),
    )


def gate_counts(judged: Iterable[Judged]) -> tuple[GateCount, ...]:
    """Outcomes of each gate, in the order of the gates. Rollouts without a verdict do not count."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in judged:
        if isinstance(one.result, Verdict):
            for gate in one.result.gates:
                counts[gate.name][gate.outcome] += 1
    return tuple(
        GateCount(
            name=name,
            passed=outcomes["passed"],
            failed=outcomes["failed"],
            observed_failed=outcomes["observed_failed"],
            not_reached=outcomes["not_reached"],
        )
        for name, outcomes in counts.items()
    )


def group_shares(judged: Iterable[Judged]) -> GroupShares:
    """Shares of groups whose rewards are all alike and low, differ, or are all alike and above zero."""
    rewards: dict[str, set[float]] = defaultdict(set)
    for one in judged:
        if one.reward is not None:
            rewards[one.group_id].add(one.reward)
    if not rewards:
        raise ValueError("group shares of no judged rollout; give at least one")
    mixed = sum(len(seen) > 1 for seen in rewards.values())
    all_fail = sum(seen == {0.0} for seen in rewards.values())
    num = len(rewards)
    return GroupShares(all_fail=all_fail / num, mixed=mixed / num, all_pass=(num - mixed - all_fail) / num)


def iteration_point(
    iteration: int,
    policy_version: int,
    trajectories: Sequence[Trajectory],
    judged: Sequence[Judged],
    tasks: Sequence[TaskSpec],
    act_kind: Callable[[str], ActKind],
    *,
    held_out: Estimate | None,
    step: StepView | None,
    not_whole: NotWhole,
    confidence: float = 0.95,
) -> IterationPoint:
    """One iteration of training, from what was rolled out in it. `tasks` is the whole pool, in heat-map order."""
    runs = runs_of(trajectories, judged, {task.task_id: task for task in tasks})
    passed: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        passed[run.task_id].append(run.passed)
    rates = (passed.get(task.task_id) for task in tasks)
    return IterationPoint(
        iteration=iteration,
        policy_version=policy_version,
        num_rollouts=len(trajectories),
        train=success_rate(runs, confidence=confidence),
        held_out=held_out,
        groups=group_shares(judged),
        gates=gate_counts(judged),
        behaviour=measure_behaviour(runs, act_kind, confidence=confidence),
        step=step,
        not_whole=not_whole,
        recorded=recorded_of(trajectories),
        pass_rates=tuple(sum(r) / len(r) if r else None for r in rates),
    )


def task_labels(tasks: Iterable[TaskSpec]) -> tuple[TaskLabel, ...]:
    """Rows of the heat map, in the order of the pool."""
    return tuple(TaskLabel(task_id=task.task_id, horizon=task.horizon) for task in tasks)


def _sampled(trajectory: Trajectory, pieces: Pieces) -> dict[str, tuple[Token, ...]]:
    """Call id -> the tokens it sampled."""
    out: dict[str, tuple[Token, ...]] = {}
    for chain in trajectory.chains:
        for segment in chain.segments:
            if segment.trainable:
                texts = pieces(segment.ids)
                probabilities = (min(1.0, math.exp(x)) for x in segment.logprobs)
                tokens = (Token(text=t, probability=p) for t, p in zip(texts, probabilities, strict=True))
                out[segment.call_id] = (*out.get(segment.call_id, ()), *tokens)
    return out


def trajectory_view(
    title: str, trajectory: Trajectory, judged: Judged, task: TaskSpec, pieces: Pieces
) -> TrajectoryView:
    """A rollout with the probability of every sampled token. Raises ValueError when it has no verdict."""
    if not isinstance(judged.result, Verdict):
        raise ValueError(f"rollout {judged.rollout_id} has no verdict ({judged.result.reason}); show a judged one")
    sampled = _sampled(trajectory, pieces)
    turn_calls = {turn.call_id for turn in trajectory.turns}
    last = [tokens for call_id, tokens in sampled.items() if call_id not in turn_calls]
    return TrajectoryView(
        title=title,
        rollout_id=trajectory.rollout_id,
        task_id=task.task_id,
        instruction=task.instruction,
        horizon=task.horizon,
        policy_version=trajectory.policy_versions[1],
        status=trajectory.status,
        reward=judged.result.reward,
        gates=tuple((gate.name, gate.outcome, gate.detail) for gate in judged.result.gates),
        turns=tuple(
            TurnView(
                index=turn.index,
                tokens=sampled.get(turn.call_id, ()),
                thought=turn.thought,
                action=turn.action,
                observation=turn.observation,
                exit_code=turn.exit_code,
                error_class=turn.error_class,
                duration_s=turn.duration_s,
            )
            for turn in trajectory.turns
        ),
        final_tokens=last[-1] if last else (),
        final_payload=trajectory.final_payload,
    )


def choose_examples(
    before: Mapping[str, bool], after: Mapping[str, bool], horizons: Mapping[str, int]
) -> tuple[tuple[str, str], ...]:
    """Three (policy 'before' | 'after', task id) worth reading: a task that was lost and is won, from both sides,
    and the longest task that is won. Fewer when there are no such tasks; both maps are task id -> solved.
    """
    by_length = sorted(horizons, key=lambda task: (-horizons[task], task))
    won = next((t for t in by_length if not before.get(t, True) and after.get(t, False)), None)
    out: list[tuple[str, str]] = [("before", won), ("after", won)] if won is not None else []
    rest = [t for t in by_length if t != won and t in after]
    longest = next((t for t in rest if after[t]), rest[0] if rest else None)
    return (*out, ("after", longest)) if longest is not None else tuple(out)
