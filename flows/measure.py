"""Measuring one model by itself: the benchmark stage, run without a workflow engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.config import RunConfig
from flows.home import Home, open_desk
from flows.loop import benchmark_policy
from flows.results import plain_estimate
from tasks.policies import Policy, adopt
from tasks.pools import make_pools
from tasks.progress import Progress
from tasks.stage import perform
from training.evaluation.runs import runs_of
from training.evaluation.success import success_by_horizon, success_rate


def measure_model(home: Path, config: RunConfig, model: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Held-out success of a model folder (None: the configuration's policy), in all and by horizon band."""
    with open_desk(Home(home), config, progress) as desk:
        run = partial(perform, desk)
        digest = config.policy.digest if model is None else None
        policy = Policy(manifest=run(adopt(model or config.policy.path, digest=digest)), version=0)
        pools = make_pools(desk.workshop.suite(config.pool.suite), config.pool)
        done = benchmark_policy(desk, run, config, policy, pools.held_out, "benchmark")
        members = [m for g in done.groups(desk) for m in g.members]
        runs = runs_of(members, done.verdicts(desk), {t.task_id: t for t in pools.held_out.tasks})
    bands = success_by_horizon(runs, config.benchmark.bands, confidence=config.benchmark.confidence)
    return {
        "model": str(model or config.policy.path),
        "held_out": plain_estimate(success_rate(runs, confidence=config.benchmark.confidence)),
        "by_horizon": [
            {
                "horizons": [band.low, band.high],
                "n": band.terminal.n,
                "success": band.terminal.mean,
                "strict": band.strict.mean,
            }
            for band in bands
        ],
    }
