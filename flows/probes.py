"""Rollouts that only measure: those that the store has are found, the others done and kept for whoever asks next."""

from __future__ import annotations

from dataclasses import replace

from flows.config import RunConfig
from flows.shards import roll_out_plan
from infra.manifest import Manifest
from tasks.evaluations import evaluations_of, is_kept, keep, kept, read_to_measure, to_measure
from tasks.rollouts import RolloutPlan, merge
from tasks.stage import Desk, Runner


def measure_apart(
    desk: Desk, run: Runner, config: RunConfig, plan: RolloutPlan, chosen: Manifest
) -> tuple[Manifest, frozenset[str]]:
    """The rollouts of a plan that only measures, and the ids of the groups that were found and cost nothing."""
    plan, evaluations = evaluations_of(desk, plan, config=config.rollouts, gates=config.gates)
    ours = read_to_measure(desk, run(to_measure(desk, chosen, evaluations, iteration=plan.iteration)))
    found = frozenset(name for name, e in evaluations.items() if name not in ours and is_kept(desk, e))
    parts = [run(kept(evaluations[name])) for name in evaluations if name in found]
    lost = evaluations.keys() - ours - found  # they were there when this run began to measure
    # The lost apart, so that what this run did itself is asked for as it was, and found.
    for names in (ours, lost):
        requests = tuple(r for r in plan.requests if r.group_id in names)
        if requests:
            done = roll_out_plan(desk, run, config, replace(plan, requests=requests), (chosen,))
            for work in keep(desk, done, evaluations):
                run(work)
            parts.append(done)
    if found:
        desk.progress.say(f"{len(found)} of {len(evaluations)} tasks were measured before with these weights: found")
    return run(merge(desk, plan, tuple(parts), parents=(chosen,))), found
