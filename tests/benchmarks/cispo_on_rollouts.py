"""CISPO beside GRPO on real rollouts: do they go on verifying before they finish, and looking after an error?

    python tests/benchmarks/cispo_on_rollouts.py --iterations 8 --seeds 0 1 --out tests/benchmarks/results/FILE.json

Each loss starts from the same policy, seed and first batch of rollouts (made once and reused) and goes its own way
from there: select, roll out in real boxes, judge, train with `--updates` off-policy updates on each batch, which is
where a clip begins to matter. Told for each iteration, over its training rollouts: the pass rate, P(verify after the
last mend | said it was done), P(the turn after an error inspects), with intervals clustered by task; and of the
training step entropy, clipped share and the share of the gradient on the words that stop and look. The summary takes
each loss's mean over the last half of the iterations, and the first loss's less each other's, paired by seed, with
Student's interval over seeds. Runs are added to those that the file of `--out` holds. The spike guard is off, since it
stops a run (GRPO's of seed 2, at the sixth step); gradients are clipped to norm 1 as ever.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

from environments.suites.service_repair.acts import act_kind
from flows.config import RunConfig
from flows.home import Home, open_desk
from flows.loop import RunState, iterate
from flows.overrides import with_flags
from flows.presets import preset
from tasks.pass_rates import Curriculum
from tasks.policies import Policy, adopt
from tasks.pools import make_pools
from tasks.progress import Silent
from tasks.report import TrainingRecord
from tasks.stage import Desk, perform
from tasks.train import read_report
from training.evaluation.behaviour import measure_behaviour
from training.evaluation.runs import runs_of

MEASURES = ("verify_before_finish", "inspect_after_error", "pass_rate")
OF_STEP = ("entropy", "clipped_fraction", "ratio_max", "kl_to_behaviour", "rare_token_gradient_share")


def run(home: Path, config: RunConfig) -> list[dict[str, Any]]:
    """The iterations of one loss and seed; stages that another loss has done with equal inputs are reused."""
    with open_desk(Home(home), config, Silent()) as desk:
        pool = make_pools(desk.workshop.suite(config.pool.suite), config.pool).train
        start = Policy(manifest=perform(desk, adopt(config.policy.path, digest=config.policy.digest)), version=0)
        state = RunState(
            policy=start, start=start, curriculum=Curriculum(strategy=config.strategy(), pool=pool, folded=None)
        )
        told = []
        for number in range(config.iterations):
            iteration = iterate(desk, partial(perform, desk), config, state, number)
            state = iteration.after
            told.append(row(desk, config, iteration.record))
            print(json.dumps(told[-1]), flush=True)
        return told


def row(desk: Desk, config: RunConfig, record: TrainingRecord) -> dict[str, Any]:
    members = [m for g in record.groups for m in g.members]
    tasks = {d.task_id: d for d in make_pools(desk.workshop.suite(config.pool.suite), config.pool).train.tasks}
    behaviour = measure_behaviour(runs_of(members, record.verdicts, tasks), act_kind)
    report = read_report(desk, record.policy)
    return {
        "loss": config.training.loss,
        "seed": config.seed,
        "iteration": record.number,
        "rollouts": len(members),
        "pass_rate": sum(v.passed for v in record.verdicts) / len(record.verdicts),
        **asdict(behaviour),
        **{name: report.get(name) for name in OF_STEP},
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each measure and each loss but the first: both means over seeds that both have, and their difference."""
    first, *others = dict.fromkeys(row["loss"] for row in rows)
    return [compared(rows, measure, first, other) for other in others for measure in MEASURES]


def compared(rows: list[dict[str, Any]], measure: str, first: str, other: str) -> dict[str, Any]:
    ours, theirs = (late_means(rows, measure, loss) for loss in (first, other))
    seeds = sorted(ours.keys() & theirs.keys())
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    around = float(gaps.std(ddof=1) / math.sqrt(len(gaps)) * t.ppf(0.975, len(gaps) - 1)) if len(gaps) > 1 else None
    mean = float(gaps.mean())
    return {
        "measure": measure,
        first: float(np.mean([ours[seed] for seed in seeds])),
        other: float(np.mean([theirs[seed] for seed in seeds])),
        "difference": {
            "mean": mean,
            "low": None if around is None else mean - around,
            "high": None if around is None else mean + around,
            "n": len(gaps),
        },
        "by_seed": dict(zip(seeds, gaps.tolist(), strict=True)),
    }


def late_means(rows: list[dict[str, Any]], measure: str, loss: str) -> dict[int, float]:
    """By seed: the mean over the last half of the iterations, those without a case left out."""
    half = (1 + max(row["iteration"] for row in rows)) // 2
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        if row["loss"] == loss and row["iteration"] >= half and row[measure] is not None:
            value = row[measure]
            by_seed.setdefault(row["seed"], []).append(value["mean"] if isinstance(value, dict) else value)
    return {seed: float(np.mean(values)) for seed, values in by_seed.items()}


def with_kept(out: Path, rows: list[dict[str, Any]], updates: int) -> list[dict[str, Any]]:
    """These rows after those of other runs that the file holds."""
    if not out.is_file():
        return rows
    held = json.loads(out.read_text())
    if held["updates_per_batch"] != updates:
        raise SystemExit(f"{out} has runs of {held['updates_per_batch']} updates a batch, not {updates}: name another")
    made = {(row["loss"], row["seed"]) for row in rows}
    return [row for row in held["rows"] if (row["loss"], row["seed"]) not in made] + rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", nargs="+", default=["cispo", "grpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--updates", type=int, default=8, help="optimizer updates on each batch")
    parser.add_argument("--set", dest="flags", nargs="*", default=[], metavar="SECTION.FIELD=VALUE")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--home", type=Path, help="kept, and gone on with, when given")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    config = replace(preset(given.preset), iterations=given.iterations)
    config = with_flags(
        config, (f"training.updates_per_batch={given.updates}", "training.spike_factor=1e30", *given.flags)
    )
    with tempfile.TemporaryDirectory() as place:
        rows = [
            made
            for seed in given.seeds
            for loss in given.losses
            for made in run(
                given.home or Path(place),
                replace(config, name=f"claim-{loss}", seed=seed, training=replace(config.training, loss=loss)),
            )
        ]
    if given.out:
        rows = with_kept(given.out, rows, given.updates)
        told = {"updates_per_batch": given.updates, "summary": summary(rows), "rows": rows}
        given.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
