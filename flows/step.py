"""One step by itself: the loop's single iteration, run without a workflow engine."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.config import RunConfig
from flows.home import STEP, Home, open_desk
from flows.loop import Iteration, RunState, iterate
from flows.noted import STAGES, Noted
from infra.digests import digest_folder
from tasks.pass_rates import Curriculum
from tasks.policies import Policy, adopt
from tasks.pools import make_pools
from tasks.progress import Progress
from tasks.stage import Desk, perform
from tasks.train import check_section, read_report


def take_step(home: Path, config: RunConfig, *, tasks: int, group: int, progress: Progress) -> dict[str, Any]:
    """Roll out `tasks` x `group`, judge, train once. Returns what happened, `policy_digest` among it."""
    started = time.monotonic()
    config = replace(
        config,
        name=STEP,
        iterations=1,
        curriculum=replace(
            config.curriculum, strategy="uniform", settings=(), tasks_per_iteration=tasks, group_size=group
        ),
    )
    with open_desk(Home(home), config, progress) as desk:
        notes = Home(home).run(desk.run_id) / STAGES
        notes.unlink(missing_ok=True)
        check_section(config.training)
        run = Noted(partial(perform, desk), notes)
        pools = make_pools(desk.workshop.suite(config.pool.suite), config.pool)
        start = Policy(manifest=run(adopt(config.policy.path, digest=config.policy.digest)), version=0)
        curriculum = Curriculum(strategy=config.strategy(), pool=pools.train, folded=None)
        done = iterate(desk, run, config, RunState(policy=start, start=start, curriculum=curriculum), 0)
        return _told(desk, done, wall_s=time.monotonic() - started)


def _told(desk: Desk, done: Iteration, *, wall_s: float) -> dict[str, Any]:
    report = read_report(desk, done.after.policy)
    members = [m for g in done.record.groups for m in g.members]
    shown: dict[str, Any] = {
        k: report[k] for k in ("loss", "ratio_mean", "ratio_max", "entropy", "grad_norm", "tokens_per_s") if k in report
    }
    return {
        "run_id": desk.run_id,
        "rollouts": len(members),
        "passed": sum(v.passed for v in done.record.verdicts),
        "infra_faults": sum(len(g.excluded) for g in done.record.groups),
        "sampled_tokens": sum(m.usage.completion_tokens for m in members),
        "zero_gradient_share": done.record.zero_gradient.zero_gradient_share,
        **({"skipped": report["skipped"]} if "skipped" in report else {}),
        **shown,
        "policy_version": done.after.policy.version,
        "policy_digest": digest_folder(done.after.policy.folder(desk)),
        "policy": str(done.after.policy.folder(desk)),
        "wall_s": round(wall_s, 1),
    }
