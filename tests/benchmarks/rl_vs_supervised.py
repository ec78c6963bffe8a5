"""Reinforcement beside no training and beside imitation on the same compute, on the same held-out tasks.

    python tests/benchmarks/rl_vs_supervised.py HOME [RUN_ID]     # a home folder with a finished `longbreath finetune`

All arms start from the run's warm start. The budget is the processor seconds (sandboxes included) that the run spent
on selecting, rolling out, judging, checking and training; its benchmarks are left out on all sides. Imitation spends it
on fresh demonstrations of the run's own training tasks, by the demonstrator of the warm start's last lesson, and on
supervised training on them; demonstrating is paid for. With `--solved`, one more arm pays for judging them too and
learns from those that passed alone. Rounds are rounded up: imitation never gets less than reinforcement did.

Every arm meets the same held-out tasks with the same random numbers, sampled as in rollouts and greedily. The result is
`results/rl_vs_supervised.json`, or `--out`. The run's home gets new artifacts and a run of the name `baseline`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from environments.types import Group
from flows.cli.live import LiveProgress
from flows.config import RunConfig
from flows.history import RunNotes
from flows.home import Home, open_desk, saved_config
from flows.loop import benchmark_policy
from flows.results import plain_estimate
from infra import records
from infra.manifest import Manifest
from tasks.benchmark import Benchmarked
from tasks.judge import judge_rollouts, read_judged
from tasks.policies import Policy, adopt
from tasks.pools import Pools, make_pools
from tasks.report import compare_benchmarks
from tasks.rollouts import GROUPS_FILE, read_groups
from tasks.stage import Desk, Stage, Work, code_version, perform
from tasks.train import TRAIN
from tasks.warm_start import Lesson, WarmStartConfig, demonstrate, learn

RESULT = Path(__file__).parent / "results" / "rl_vs_supervised.json"
SOLVED = Stage(name="solved", version=1, kind="rollouts")
REINFORCEMENT = "reinforcement"
FIRST_SEED = 10_000
"""Seeds of fresh demonstrations count from here: those of the warm start are small."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A policy and what it cost beyond the warm start, in processor seconds by kind of work."""

    name: str
    policy: Policy
    cpu_s: dict[str, float]
    about: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all arms share."""

    desk: Desk
    config: RunConfig
    pools: Pools
    start: Policy

    def run(self, work: Work) -> Manifest:
        return perform(self.desk, work)


def reinforcement(bench: Bench, notes: RunNotes) -> Arm:
    """The finished run: its last policy and the cost of its loop, read from its manifests."""
    kinds = {kind: notes.manifests(kind) for kind in ("selection", "rollouts", "judged", "quality", "curriculum")}
    chosen = {m.key for m in kinds["selection"]}
    kinds["rollouts"] = [m for m in kinds["rollouts"] if chosen & set(m.parents)]  # a benchmark's were not selected
    rolled_out = {m.key for m in kinds["rollouts"]}
    kinds["judged"] = [m for m in kinds["judged"] if rolled_out & set(m.parents)]
    kinds["train"] = [m for m in notes.manifests("policy") if m.producer.stage == TRAIN.name]
    sampled = sum(len(g.members) for m in kinds["rollouts"] for g in read_groups(bench.desk, m))
    return Arm(
        name=REINFORCEMENT,
        policy=Policy(manifest=kinds["train"][-1], version=len(kinds["train"])),
        cpu_s={kind: sum(m.producer.cpu_s for m in made) for kind, made in kinds.items()},
        about={"iterations": len(kinds["train"]), "rollouts": sampled},
    )


def imitation(bench: Bench, lesson: Lesson, *, budget_s: float, solved_only: bool, version: int) -> Arm:
    """Demonstrate and imitate until the budget is spent; see the module's docstring."""
    batch = WarmStartConfig().batch_size
    cost = {"demonstrate": 0.0, "judge": 0.0, "imitate": 0.0}
    made: list[Manifest] = []
    rounds = 1
    while len(made) < rounds:
        seed = FIRST_SEED + len(made)
        said = replace(lesson, demonstrations=replace(lesson.demonstrations, seed=seed))
        concurrency = bench.config.rollouts.concurrency
        done = bench.run(demonstrate(bench.desk, bench.start.manifest, bench.pools.train, said, concurrency))
        cost["demonstrate"] += done.producer.cpu_s
        if solved_only:
            done, judged_s = _solved(bench, done)
            cost["judge"] += judged_s
        made.append(done)
        if len(made) == 1:
            trial = bench.run(learn(bench.desk, bench.start.manifest, (done,), replace(lesson, passes=1), batch))
            # timed on the first round, and thrown away
            a_round = cost["demonstrate"] + cost["judge"] + lesson.passes * trial.producer.cpu_s
            rounds = math.ceil(budget_s / a_round)
    learnt = bench.run(learn(bench.desk, bench.start.manifest, tuple(made), lesson, batch))
    cost["imitate"] = learnt.producer.cpu_s
    return Arm(
        name=f"imitation{' of the solved' if solved_only else ''}, rate {lesson.learning_rate:g}",
        policy=Policy(manifest=learnt, version=version),
        cpu_s=cost,
        about={
            "rounds": rounds,
            "demonstrations": sum(len(read_groups(bench.desk, m)) for m in made),
            "passes": lesson.passes,
            "updates": learnt.rows,
            "demonstrator": asdict(lesson.demonstrations),
        },
    )


def _solved(bench: Bench, demonstrations: Manifest) -> tuple[Manifest, float]:
    """The demonstrations that pass the gates, and the processor seconds it took to find out."""
    concurrency = bench.config.rollouts.concurrency
    judging = judge_rollouts(
        bench.desk,
        demonstrations,
        bench.pools.train,
        gates=bench.config.gates,
        concurrency=concurrency,
        iteration=None,
    )
    judged = bench.run(judging)
    passed = {j.rollout_id for j in read_judged(bench.desk, judged) if j.passed}

    def make(out: Path, scratch: Path) -> int:
        groups = [g for g in read_groups(bench.desk, demonstrations) if g.members[0].rollout_id in passed]
        out.mkdir()
        return records.write_parquet(groups, out / GROUPS_FILE, cls=Group)

    schema = records.schema_version(Group)
    work = Work(stage=SOLVED, parents=(demonstrations, judged), section=[], make=make, schema_version=schema)
    return bench.run(work), judged.producer.cpu_s


def measured(bench: Bench, arms: Sequence[Arm]) -> dict[str, dict[str, Benchmarked]]:
    """Mode -> arm -> its benchmark. Arms come in the order of their versions: an engine never goes back."""
    rules = {"sampled": replace(bench.config.benchmark, greedy=False), "greedy": bench.config.benchmark.greedily}
    out: dict[str, dict[str, Benchmarked]] = {mode: {} for mode in rules}
    for arm in arms:
        for mode, rule in rules.items():
            label = f"{arm.name}, {mode}"
            out[mode][arm.name] = benchmark_policy(
                bench.desk, bench.run, bench.config, arm.policy, bench.pools.held_out, label, rule
            )
    return out


def told(bench: Bench, arms: Sequence[Arm], by_mode: dict[str, dict[str, Benchmarked]]) -> dict[str, Any]:
    """The arms' levels, and reinforcement's gain over each of the others, paired by task."""
    config, held_out = bench.config.benchmark, bench.pools.held_out
    gains: list[dict[str, Any]] = []
    levels: list[dict[str, Any]] = [
        {"arm": a.name, "cpu_s": {k: round(v, 1) for k, v in a.cpu_s.items()}, **a.about} for a in arms
    ]
    for mode, done in by_mode.items():
        for level in levels:
            pair = compare_benchmarks(bench.desk, done[level["arm"]], done[REINFORCEMENT], config, held_out)
            level[mode] = plain_estimate(pair.before)
            if level["arm"] != REINFORCEMENT:
                row = {"mode": mode, "over": level["arm"], "gain": plain_estimate(pair.gain), "p_value": pair.p_value}
                gains.append(row)
    return {"arms": levels, "reinforcement_gains": gains}


def shown(result: dict[str, Any]) -> None:
    """Two tables."""
    out = Console(width=130)
    arms = Table("arm", "sampled", "greedy", "CPU s", title=f"{result['num_held_out']} held-out tasks")
    for arm in result["arms"]:
        arms.add_row(
            arm["arm"], *(_percent(arm[m]) for m in ("sampled", "greedy")), f"{sum(arm['cpu_s'].values()):.0f}"
        )
    gains = Table("reinforcement over", "mode", "gain (points)", "sign-flip p")
    for row in result["reinforcement_gains"]:
        gains.add_row(row["over"], row["mode"], _points(row["gain"]), f"{row['p_value']:.4f}")
    out.print(arms, gains)


def _percent(e: dict[str, float]) -> str:
    return f"{e['mean']:.1%} [{e['low']:.1%}, {e['high']:.1%}]"


def _points(e: dict[str, float]) -> str:
    return f"{100 * e['mean']:+.1f} [{100 * e['low']:+.1f}, {100 * e['high']:+.1f}]"


def main() -> None:
    """Parse, measure, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("run_id", nargs="?")
    parser.add_argument("--rates", type=float, nargs="+", help="learning rates of imitation; default: the lesson's own")
    parser.add_argument("--solved", action="store_true", help="imitation of the solved demonstrations alone, too")
    parser.add_argument("--out", type=Path, default=RESULT)
    asked = parser.parse_args()
    home = Home(asked.home.resolve())
    notes = RunNotes(home, asked.run_id or home.run_ids()[0])
    finished = notes.result()
    if finished is None:
        parser.error(f"run {notes.run_id} is not finished; `longbreath runs resume {notes.run_id}` goes on with it")
    config = saved_config(home, notes.run_id)
    lesson = WarmStartConfig().lessons[-1]
    rates = asked.rates or [lesson.learning_rate]
    started = time.monotonic()
    with LiveProgress(1) as progress, open_desk(home, replace(config, name="baseline"), progress) as desk:
        pools = make_pools(desk.workshop.suite(config.pool.suite), config.pool)
        adopted = perform(desk, adopt(config.policy.path, digest=config.policy.digest))
        bench = Bench(desk=desk, config=config, pools=pools, start=Policy(manifest=adopted, version=0))
        arms = [Arm(name="no training", policy=bench.start, cpu_s={}, about={}), reinforcement(bench, notes)]
        budget_s = sum(arms[1].cpu_s.values())
        progress.say(f"reinforcement spent {budget_s:.0f} processor seconds: so may each imitation")
        teach = partial(imitation, bench, budget_s=budget_s)
        for rate in rates:
            for solved_only in (False, True)[: 1 + asked.solved]:
                version = arms[-1].policy.version + 1
                arms.append(teach(replace(lesson, learning_rate=rate), solved_only=solved_only, version=version))
                progress.say(f"{arms[-1].name}: {arms[-1].about['demonstrations']} demonstrations")
        result = told(bench, arms, measured(bench, arms))
    result = {
        "run": {"run_id": notes.run_id, "held_out": finished["held_out"], "stage_s": finished["stage_s"]},
        "num_held_out": len(pools.held_out.tasks),
        "code_version": code_version(),
        "machine": f"{platform.machine()}, {platform.python_version()}",
        "wall_s": round(time.monotonic() - started, 1),
        **result,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n")
    shown(result)


if __name__ == "__main__":
    main()
