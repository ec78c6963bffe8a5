"""Whom a candidate must beat: the reigning champion, on the very tasks and random numbers of the candidate."""

from __future__ import annotations

from dataclasses import replace

from environments.types import TaskPool
from flows.config import RunConfig
from flows.home import Home, workshop_of
from flows.loop import benchmark_policy
from infra.digests import digest_folder
from infra.registry import Registry
from tasks.benchmark import Benchmarked
from tasks.policies import Policy, adopt
from tasks.registry import fetch, measurement, rival_of
from tasks.stage import Desk, Runner
from training.evaluation.promotion import Measurement


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
) -> Measurement:
    """Whom the candidate must beat, measured: the champion, or the policy it started from where there is none."""
    version = rival_of(registry, digest_folder(candidate.folder(desk)))
    if version is None:
        return measurement(desk, before, config.benchmark, held_out, name="start")
    champion = fetch(registry, version, home.root / "champions")
    if champion.sha256 == digest_folder(before.policy.folder(desk)):
        return measurement(desk, before, config.benchmark, held_out)
    desk.progress.say(f"the champion is version {version}: it meets the same tasks")
    # An engine never goes back to older weights, so the champion gets one of its own.
    with workshop_of(config, home.root / "work" / f"{desk.run_id}-champion") as workshop:
        policy = Policy(manifest=run(adopt(champion.folder, digest=champion.sha256)), version=champion.policy_version)
        own = replace(desk, workshop=workshop)
        done = benchmark_policy(own, run, config, policy, held_out, "benchmark champion")
    return measurement(desk, done, config.benchmark, held_out)
