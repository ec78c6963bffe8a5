"""A simulated run that learns, in the real record types: what the report is drawn from in tests.

The agent is a coin with habits; nothing here is a measurement. Texts hold what a hostile agent might write.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from environments.types import (
    Chain,
    ErrorClass,
    GateOutcome,
    GateResult,
    Judged,
    Limits,
    Segment,
    TaskSpec,
    Trajectory,
    Turn,
    Usage,
    Verdict,
)
from training.evaluation.behaviour import ActKind
from training.evaluation.comparison import compare
from training.evaluation.promotion import Measurement, PromotionRule, decide
from training.evaluation.report_data import (
    IterationPoint,
    NotWhole,
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
from training.evaluation.success import success_rate

HOSTILE = (
    "</pre></script><script>document.title='owned'</script><img src=http://evil.example/x.png onerror=alert(1)>\x1b[2J"
)
BANDS = (5, 8, 12)
ACTIONS: dict[str, ActKind] = {
    "cat web/config.ini": "inspect",
    "ls -l web": "inspect",
    "sed -i 's/port=808/port=80/' web/config.ini": "mend",
    "chmod +x web/start": "mend",
    "./check": "verify",
}
ERRORS: tuple[ErrorClass, ...] = ("exit_code", "exit_code", "exit_code", "parse", "repeat", "timeout")


def act_kind(command: str) -> ActKind:
    return ACTIONS.get(command, "other")


@dataclass(frozen=True)
class Coin:
    """A pretended policy: `error` a turn, `care` the chance to verify and to inspect."""

    version: int
    error: float
    care: float


def task(index: int, prefix: str) -> TaskSpec:
    horizon = 3 + index % 10
    return TaskSpec(
        task_id=f"{prefix}-{horizon:02d}-{index:04d}",
        suite="service_repair",
        instruction="Service web is broken. Make ./check pass, then answer.",
        seed=index,
        horizon=horizon,
        limits=Limits(max_turns=horizon * 2 + 4, max_tokens=2000),
    )


def pieces(ids: tuple[int, ...] | list[int]) -> list[str]:
    words = (
        "I ",
        "look ",
        "at ",
        "the ",
        "port",
        ".\n",
        "wait, ",
        "check ",
        "again ",
        "<b>",
        "sed ",
        "-i ",
        "web/",
        "80",
        "\n",
    )
    return [words[i % len(words)] for i in ids]


def _turn(rng: np.random.Generator, index: int, coin: Coin, last: bool, before_bad: bool) -> Turn:
    bad = bool(rng.random() < coin.error * (2.2 if before_bad else 1.0))
    if last and rng.random() < coin.care:
        action = "./check"
    elif before_bad and rng.random() < coin.care:
        action = "ls -l web"
    else:
        action = str(rng.choice(list(ACTIONS)[:4]))
    return Turn(
        index=index,
        call_id=f"k{index}",
        tool_call_id=f"x{index}",
        agent_id="main",
        source="sandbox",
        thought="The port may be wrong; I look first.",
        action=action,
        observation=f"sed: can't read web/config.ini: No such file {HOSTILE}" if bad else "port=808\nhost=127.0.0.1",
        exit_code=2 if bad else 0,
        error_class=str(rng.choice(ERRORS)) if bad else None,  # type: ignore[arg-type]
        duration_s=float(rng.gamma(2.0, 0.01)),
    )


def _chain(rng: np.random.Generator, rollout_id: str, calls: int, version: int) -> Chain:
    segments: list[Segment] = []
    for index in range(calls):
        n = int(rng.integers(14, 32))
        ids = tuple(int(i) for i in rng.integers(0, 15, n))
        logprobs = tuple(-float(x) for x in rng.exponential(0.5, n) ** 2)
        segments.append(Segment(ids=ids[:9], logprobs=(), trainable=False, call_id=f"k{index}", policy_version=-1))
        segments.append(
            Segment(ids=ids, logprobs=logprobs, trainable=True, call_id=f"k{index}", policy_version=version)
        )
    return Chain(
        chain_id=f"{rollout_id}-c0",
        rollout_id=rollout_id,
        agent_id="main",
        role="main",
        parent_chain_id=None,
        fork_cause="root",
        segments=tuple(segments),
    )


def _chains(main: Chain, *, forked: bool) -> tuple[Chain, ...]:
    """The chain, and beside it what a harness that compacts its history makes of the same beginning."""
    fork = replace(
        main,
        chain_id=f"{main.rollout_id}-c1",
        parent_chain_id=main.chain_id,
        fork_cause="compacted",
        segments=main.segments[:2],
    )
    return (main, fork) if forked else (main,)


def rollout(rng: np.random.Generator, spec: TaskSpec, coin: Coin, group: str, index: int) -> tuple[Trajectory, Judged]:
    turns: list[Turn] = []
    num = spec.horizon + int(rng.integers(0, 3))
    for i in range(num):
        turns.append(_turn(rng, i, coin, i == num - 1, bool(turns and turns[-1].error_class)))
    errors = sum(t.error_class is not None for t in turns)
    passed = bool(
        rng.random() < (1 - coin.error) ** spec.horizon * (1 + 0.35 * coin.care) - 0.08 * errors * (1 - coin.care)
    )
    malformed, forbidden = rng.random() < coin.error / 2, rng.random() < coin.error / 4
    fails: tuple[GateOutcome, ...] = ("failed", "not_reached", "not_reached")
    if malformed:
        outcomes = fails
    elif forbidden:
        outcomes = ("passed", "failed", "not_reached")
    else:
        outcomes = ("passed", "passed", "passed" if passed else "failed")
    gates = tuple(
        GateResult(name=n, outcome=o, detail="turn 2: edit: changes /srv/check" if o == "failed" else "")
        for n, o in zip(("format", "invariance", "execution"), outcomes, strict=True)
    )
    passed = outcomes[2] == "passed"
    rollout_id = f"{group}-{index}"
    chains = _chains(_chain(rng, rollout_id, num + 1, coin.version), forked=index == 1)
    trajectory = Trajectory(
        rollout_id=rollout_id,
        group_id=group,
        index=index,
        attempt=0,
        task_id=spec.task_id,
        status="completed" if rng.random() < 0.9 else "budget_exhausted",
        fault="",
        chains=chains,
        turns=tuple(turns),
        final_payload='{"answer": "done"}',
        usage=Usage(
            turns=num,
            calls=num + 1,
            prompt_tokens=9 * num,
            completion_tokens=sum(c.num_trainable for c in chains) + 5 * (index == 2),
            wall_s=2.0,
            sandbox_s=0.2,
        ),
        policy_versions=(coin.version, coin.version),
        final_state_uri="",
    )
    verdict = Verdict(gates=gates, scores=(), reward=float(passed), passed=passed)
    return trajectory, Judged(rollout_id=rollout_id, group_id=group, task_id=spec.task_id, result=verdict)


Rolled = list[tuple[Trajectory, Judged]]


def _benchmark(rng: np.random.Generator, pool: list[TaskSpec], coin: Coin) -> Rolled:
    return [rollout(rng, spec, coin, f"bench{coin.version}-{spec.task_id}", 0) for spec in pool]


def _step(rng: np.random.Generator, number: int) -> StepView:
    tenths, bins = np.exp(-np.arange(10) / (2 + number / 8)), np.array([2, 9, 60, 300, 9000, 420, 90, 12, 2, 1])
    return StepView(
        kl_to_behaviour=0.002 + float(rng.random()) * 0.002,
        kl_to_start=0.012 * number + float(rng.random()) * 0.004 if number else 0.0,
        rare_token_gradient_share=0.02 + 0.05 * math.exp(-number / 5) + float(rng.random()) * 0.01,
        rare_word_counts=(("wait", 0), ("but", 3 * number), ("verify", 40 + number), ("check", 300)),
        decile_gradient_share=tuple(float(x) for x in tenths / tenths.sum()),
        ratio_histogram=tuple(int(n) for n in rng.poisson(bins)),
    )


def _iteration(
    rng: np.random.Generator,
    number: int,
    coin: Coin,
    pool: list[TaskSpec],
    held_out: Rolled | None,
    held: list[TaskSpec],
) -> IterationPoint:
    picked = rng.choice(len(pool), size=16, replace=False)
    rolled = [rollout(rng, pool[i], coin, f"i{number}-{pool[i].task_id}", k) for i in picked for k in range(4)]
    tasks = {t.task_id: t for t in held}
    return iteration_point(
        number,
        coin.version,
        [t for t, _ in rolled],
        [j for _, j in rolled],
        pool,
        act_kind,
        held_out=success_rate(runs_of([t for t, _ in held_out], [j for _, j in held_out], tasks)) if held_out else None,
        step=_step(rng, number),
        not_whole=NotWhole(incomplete=number % 3, too_small=int(number == 2), unjudged=number % 2),
    )


def _views(held: list[TaskSpec], before: Rolled, after: Rolled) -> tuple[TrajectoryView, ...]:
    tasks = {t.task_id: t for t in held}
    sides = {"before": {t.task_id: (t, j) for t, j in before}, "after": {t.task_id: (t, j) for t, j in after}}
    solved = {side: {task_id: j.passed for task_id, (_, j) in found.items()} for side, found in sides.items()}
    picks = choose_examples(solved["before"], solved["after"], {t.task_id: t.horizon for t in held})
    titles = ("Lost before training", "The same task, won after training", "The longest task that is won")
    return tuple(
        trajectory_view(title, *sides[side][task_id], tasks[task_id], pieces)
        for title, (side, task_id) in zip(titles, picks, strict=True)
    )


def sample_report(*, iterations: int = 16, seed: int = 0) -> ReportData:
    """A run of `iterations` on 80 training and 60 held-out tasks."""
    rng = np.random.default_rng(seed)
    pool, held = [task(i, "train") for i in range(80)], [task(i, "held") for i in range(60)]
    coins = [Coin(i, 0.17 * math.exp(-i / 7) + 0.02, min(0.95, 0.2 + 0.07 * i)) for i in range(iterations + 1)]
    benchmarks = {i: _benchmark(rng, held, coins[i]) for i in {0, iterations // 2, iterations}}
    points = tuple(_iteration(rng, i, coins[i], pool, benchmarks.get(i), held) for i in range(iterations))
    before, after = benchmarks[0], benchmarks[iterations]
    horizons = {t.task_id: t.horizon for t in held}
    rewards = [{t.task_id: [j.reward or 0.0] for t, j in side} for side in (before, after)]
    tasks = {t.task_id: t for t in held}
    runs = [runs_of([t for t, _ in side], [j for _, j in side], tasks) for side in (before, after)]
    measured = [
        Measurement(policy_version=v, weights_digest=f"w{v}", evaluation_digest="e" * 64, rewards=r, num_excluded=0)
        for v, r in zip((0, iterations), rewards, strict=True)
    ]
    return ReportData(
        title="Longbreath run report",
        facts=(
            ("run", "tiny-7f3a91c2"),
            ("model", "llama-shaped, 2.1 M parameters"),
            ("suite", "service_repair, horizons 3-12"),
            ("loss", "cispo, max_ratio 5"),
            ("harness", "tool_loop"),
            ("seed", "7"),
            ("code", f"4be1c09 {HOSTILE}"),
        ),
        comparison=compare(rewards[0], rewards[1], horizons=horizons, bands=BANDS, seed=0),
        greedy=None,
        verdict=decide(measured[1], measured[0], rule=PromotionRule(), horizons=horizons, bands=BANDS, seed=0),
        before=policy_view("before (warm start)", 0, runs[0], act_kind, bands=BANDS, seed=0),
        after=policy_view(f"after (policy {iterations})", iterations, runs[1], act_kind, bands=BANDS, seed=0),
        tasks=task_labels(pool),
        iterations=points,
        spend=Spend(training=16 * 4 * iterations, probes=160, uniform_equivalent=16 * 4 * iterations * 2),
        stages=(
            StageTime(name="roll out", wall_s=212.0),
            StageTime(name="judge", wall_s=41.0),
            StageTime(name="train", wall_s=96.0),
            StageTime(name="benchmark", wall_s=52.4),
            StageTime(name="orchestration", wall_s=9.1),
        ),
        trajectories=_views(held, before, after),
    )
