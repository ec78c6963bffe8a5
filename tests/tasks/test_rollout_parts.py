"""A plan done in parts is the plan done in one: every request once, merged in the plan's order with its states."""

from __future__ import annotations

from pathlib import Path

from tasks_fakes import a_group, a_pool, counting, desk_at

from environments.rollout import GroupRequest
from infra import records
from infra.engines.base import Sampling
from tasks.policies import Policy
from tasks.rollouts import ROLL_OUT, Journal, RolloutPlan, merge, read_groups, write_rollouts
from tasks.stage import Desk, Work, perform

POOL = a_pool("a", "b", "c")


def a_plan(desk: Desk) -> RolloutPlan:
    return RolloutPlan(
        suite="service_repair",
        policy=Policy(manifest=perform(desk, counting([])), version=3),
        requests=tuple(GroupRequest(group_id=f"g-{t.task_id}", task=t, size=2) for t in POOL.tasks),
        iteration=0,
        sampling=Sampling(temperature=1.0, max_tokens=8, seed=1),
    )


def done(desk: Desk, plan: RolloutPlan) -> Work:
    """The plan's rollouts, each leaving a state."""

    def make(out: Path, scratch: Path) -> int:
        groups, journal = [a_group(r.group_id, r.task, r.size) for r in plan.requests], Journal(scratch)
        for member in (m for g in groups for m in g.members):
            journal.add(member, member.rollout_id.encode())
        return write_rollouts(groups, journal, out)

    return Work(stage=ROLL_OUT, parents=(plan.policy.manifest,), section=plan.requests, make=make)


def test_every_request_is_in_one_part_and_no_part_is_empty(tmp_path):
    plan = a_plan(desk_at(tmp_path))
    assert [[r.group_id for r in part.requests] for part in plan.split(2)] == [["g-a", "g-c"], ["g-b"]]
    assert len(plan.split(9)) == 3
    assert plan.split(1) == (plan,)


def test_a_plan_survives_the_way_to_a_worker(tmp_path):
    plan = a_plan(desk_at(tmp_path))
    assert records.from_json(RolloutPlan, records.to_json(plan)) == plan


def test_parts_are_merged_in_the_plans_order_with_the_states_they_left(tmp_path):
    desk = desk_at(tmp_path)
    plan = a_plan(desk)
    parts = tuple(perform(desk, done(desk, part)) for part in plan.split(2))
    merged, whole = perform(desk, merge(desk, plan, parts, parents=())), perform(desk, done(desk, plan))
    assert read_groups(desk, merged) == read_groups(desk, whole)
    assert merged.sha256 == whole.sha256
