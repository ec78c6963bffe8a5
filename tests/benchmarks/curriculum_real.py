"""Strategies compared on a real policy in real boxes: rollouts and time until held-out success reaches a target.

    python tests/benchmarks/curriculum_real.py play --home DIR [--seeds 5] [--target 0.5] [--most-rollouts 3000]
    python tests/benchmarks/curriculum_real.py table [--target 0.5] [--budget 512]

Every arm starts from the same policy and trains with the preset's settings but the strategy. Rollouts count whatever
they were for: training, probes, refills, groups without gradient. Wall time is that of selecting, rolling out, judging
and training, without the benchmarks in between; processor time, which other work on the machine does not stretch, is
that of the same stages, sandboxes included. Each play has a home of its own, for none shall reuse what another did.
Each iteration is a line of `results/curriculum_real.jsonl`, appended
when it is done: a play that was stopped goes on where it was, with the times noted then; of the iteration in which
it was stopped only the rest is timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from flows.config import RunConfig
from flows.home import Home, open_desk
from flows.loop import Iteration, RunState, benchmark_policy, iterate
from flows.overrides import with_flags
from flows.presets import preset
from tasks.pass_rates import Curriculum
from tasks.policies import Policy, adopt
from tasks.pools import make_pools
from tasks.progress import Silent
from tasks.stage import code_version, cpu_s, perform

ARMS = ("uniform", "dynamic_sampling", "seventy_five", "posterior")
RAW = Path(__file__).parent / "results" / "curriculum_real.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    """What is known so far, one row an iteration."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def spent_on(iteration: Iteration) -> int:
    """Rollouts of one iteration."""
    return sum(len(g.members) for g in iteration.record.groups) + iteration.record.measured_apart


def play(home: Path, config: RunConfig, *, measure_every: int) -> Iterator[dict[str, Any]]:
    """Train without end, a row an iteration; held-out success in every `measure_every`th, and before the first."""
    with open_desk(Home(home), config, Silent()) as desk:
        run = partial(perform, desk)
        pools = make_pools(desk.workshop.suite(config.pool.suite), config.pool)
        policy = Policy(manifest=run(adopt(config.policy.path, digest=config.policy.digest)), version=0)
        state = RunState(
            policy=policy,
            start=policy,
            curriculum=Curriculum(strategy=config.strategy(), pool=pools.train, folded=None),
        )
        row: dict[str, Any] = {"arm": config.curriculum.strategy, "seed": config.seed, "code": code_version()}
        row |= {"iteration": 0, "rollouts": 0, "wall_s": 0.0, "cpu_s": 0.0}
        while True:
            measured = None
            if row["iteration"] % measure_every == 0:
                done = benchmark_policy(desk, run, config, state.policy, pools.held_out, "benchmark")
                measured = float(np.mean([np.mean(r) for r in done.rewards(desk).values()]))
            yield {**row, "held_out": measured}
            started, cpu_started = time.monotonic(), cpu_s()
            iteration = iterate(desk, run, config, state, row["iteration"])
            state = iteration.after
            row["iteration"] += 1
            row["rollouts"] += spent_on(iteration)
            row["wall_s"] = round(time.monotonic() - started, 2)
            row["cpu_s"] = round(cpu_s() - cpu_started, 2)
            row["zero_gradient_share"] = round(iteration.record.zero_gradient.zero_gradient_share, 4)


def play_until(given: argparse.Namespace, config: RunConfig, raw: Path) -> None:
    """One arm and seed, to the target and the budget, or to the limit. Rows that are there are not written again."""
    arm, seed = config.curriculum.strategy, config.seed
    known = {r["iteration"] for r in rows(raw) if (r["arm"], r["seed"]) == (arm, seed)}
    reached = False
    for row in play(given.home / f"{arm}-{seed}", config, measure_every=given.measure_every):
        if row["iteration"] not in known:
            with raw.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        reached |= row["held_out"] is not None and row["held_out"] >= given.target
        measured = row["held_out"] is not None and row["rollouts"] >= given.budget
        if (reached and measured) or row["rollouts"] >= given.most_rollouts or row["iteration"] >= given.iterations:
            return


def table(found: list[dict[str, Any]], target: float, budget: int) -> str:
    """Arm by arm, means over seeds; `>` where a play ended before the target.

    Beside uniform with the same seeds: rollouts as a share (geometric mean), and the mean success over the budget as
    a difference in points, each with its 95% t interval. A play counts once it has been measured past the budget.
    """
    text = [
        f"| arm | seeds | reached | rollouts | share of uniform's | success over {budget} | less uniform's | "
        "groups without gradient | processor s | wall s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    ends = {arm: plays for arm in ARMS if (plays := _plays(found, arm, target, budget))}
    uniform = ends.get("uniform", {})
    for arm, plays in ends.items():
        reached = sum(end.reached for end in plays.values())
        mark = "" if reached == len(plays) else ">"
        rollouts, cpu, wall = np.mean([(end.rollouts, end.cpu_s, end.wall_s) for end in plays.values()], axis=0)
        success, wasted = np.mean([(end.success, end.wasted) for end in plays.values()], axis=0)
        pairs = [(end, uniform[seed]) for seed, end in plays.items() if seed in uniform] if arm != "uniform" else []
        share = _told(np.log([e.rollouts / u.rollouts for e, u in pairs]), lambda x: f"{np.exp(x):.2f}")
        more = _told(np.array([e.success - u.success for e, u in pairs]), lambda x: f"{100 * x:+.1f}")
        text.append(
            f"| {arm} | {len(plays)} | {reached} | {mark}{rollouts:.0f} | {mark if share else ''}{share} | "
            f"{success:.1%} | {more} | {wasted:.0%} | "
            f"{mark}{cpu:.0f} | {mark}{wall:.0f} |"
        )
    return "\n".join(text)


def _told(numbers: np.ndarray[Any, Any], word: Callable[[float], str]) -> str:
    """Mean and 95% t interval over seeds, in words."""
    if len(numbers) < 2:
        return word(float(numbers[0])) if len(numbers) else ""
    half = stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
    return f"{word(numbers.mean())} [{word(numbers.mean() - half)}, {word(numbers.mean() + half)}]"


@dataclass(frozen=True)
class End:
    """A play until it reached the target, or until it was given up.

    `success` is the mean held-out success of the policy at hand over the first rollouts, as many as the budget;
    `wasted` the mean share of groups without gradient over the iterations within it.
    """

    reached: bool
    rollouts: int
    cpu_s: float
    wall_s: float
    success: float
    wasted: float


def _plays(found: list[dict[str, Any]], arm: str, target: float, budget: int) -> dict[int, End]:
    """The end of each play of an arm that has come far enough, by seed."""
    plays: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(found, key=lambda row: int(row["iteration"])):
        if row["arm"] == arm:
            plays.setdefault(row["seed"], []).append(row)
    return {
        seed: _end(play, target, budget) for seed, play in plays.items() if _measured(play)[-1]["rollouts"] >= budget
    }


def _end(play: list[dict[str, Any]], target: float, budget: int) -> End:
    """Rollouts are noted as a running sum, times for each iteration."""
    there = [n for n, row in enumerate(play, 1) if row["held_out"] is not None and row["held_out"] >= target]
    until = play[: there[0]] if there else play
    times = (sum(row["cpu_s"] for row in until), sum(row["wall_s"] for row in until))
    within = play[1 : 1 + sum(row["rollouts"] < budget for row in play)]
    wasted = float(np.mean([row["zero_gradient_share"] for row in within]))
    return End(bool(there), until[-1]["rollouts"], *times, mean_success(play, budget), wasted)


def _measured(play: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in play if row["held_out"] is not None]


def mean_success(play: list[dict[str, Any]], budget: int) -> float:
    """Held-out success of the policy at hand, averaged over the first `budget` rollouts of a play.

    A policy is at hand from the end of its iteration to the end of the next; one that was not measured is taken to
    lie between its neighbours.
    """
    at, success = zip(*((row["iteration"], row["held_out"]) for row in _measured(play)), strict=True)
    of_policy = np.interp([row["iteration"] for row in play], at, success)
    spent = np.minimum([row["rollouts"] for row in play], budget)
    return float(of_policy[:-1] @ np.diff(spent) / budget)


def main() -> None:
    """Parse and dispatch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="command", required=True)
    playing, telling = sub.add_parser("play"), sub.add_parser("table")
    playing.add_argument("--home", type=Path, required=True)
    playing.add_argument("--seeds", type=int, default=5)
    playing.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    playing.add_argument("--iterations", type=int, default=40)
    playing.add_argument("--most-rollouts", type=int, default=3000)
    playing.add_argument("--measure-every", type=int, default=2)
    playing.add_argument("--set", dest="flags", nargs="*", default=[], metavar="SECTION.FIELD=VALUE")
    for one in (playing, telling):
        one.add_argument("--target", type=float, default=0.5)
        one.add_argument("--budget", type=int, default=512, help="rollouts over which success is averaged")
        one.add_argument("--raw", type=Path, default=RAW)
    given = parser.parse_args()
    if given.command == "table":
        print(table(rows(given.raw), given.target, given.budget))
        return
    given.raw.parent.mkdir(exist_ok=True)
    config = with_flags(preset("tiny"), tuple(given.flags))
    for seed in range(given.seeds):
        for arm in given.arms:
            curriculum = replace(config.curriculum, strategy=arm)
            play_until(given, replace(config, name=f"real-{arm}", seed=seed, curriculum=curriculum), given.raw)


if __name__ == "__main__":
    main()
