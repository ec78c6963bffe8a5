"""Whom a candidate must beat: the reigning champion, on the very tasks and random numbers of the candidate."""

from __future__ import annotations

from dataclasses import replace

from environments.types import TaskPool
from flows.config import RunConfig
from flows.home import Home
from flows.loop import benchmark_policy
from infra.digests import digest_folder
from infra.registry import Registry
from tasks.benchmark import Benchmarked
from tasks.policies import Policy, adopt
from tasks.registry import fetch, rival_of
from tasks.stage import Desk, Runner
from tasks.workshop import Workshop


def reigning(
    home: Home,
    desk: Desk,
    run: Runner,
    config: RunConfig,
    registry: Registry,
    *,
    candidate: Policy,
    before: Benchmarked,
    held_out: TaskPool,
) -> Benchmarked:
    """The rival's benchmark: the champion's, measured now; `before` where there is none or training began from it."""
    version = rival_of(registry, digest_folder(candidate.folder(desk)))
    if version is None:
        return before
    champion = fetch(registry, version, home.root / "champions")
    if champion.sha256 == digest_folder(before.policy.folder(desk)):
        return before
    desk.progress.say(f"the champion is version {version}: it meets the same tasks")
    # An engine never goes back to older weights, so the champion gets one of its own.
    with Workshop(config.engine, home.root / "work" / f"{desk.run_id}-champion") as workshop:
        policy = Policy(manifest=run(adopt(champion.folder, digest=champion.sha256)), version=champion.policy_version)
        return benchmark_policy(replace(desk, workshop=workshop), run, config, policy, held_out, "benchmark champion")
