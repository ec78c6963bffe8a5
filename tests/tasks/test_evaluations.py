"""What is kept of rollouts that only measure: whole groups, with the states they left, under what decides them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tasks_fakes import a_group, a_pool, desk_at, model_folder

from environments.gates.judge import GateConfig
from environments.rollout import GroupRequest
from environments.types import Exclusion
from infra.engines.base import Sampling
from infra.store import StoreError
from tasks.evaluations import evaluations_of, is_kept, keep, kept
from tasks.policies import Policy
from tasks.rollouts import Journal, RolloutConfig, RolloutPlan, read_groups, write_rollouts
from tasks.stage import Stage, Work, perform

POOL = a_pool("a", "b")


def an_artifact(desk, name, make):
    return perform(desk, Work(stage=Stage(name=name, version=1, kind=name), parents=(), section=name, make=make))


def named(desk, tmp_path):
    """A plan of two tasks, its groups named by their evaluations, and these."""

    def make(out, scratch):
        model_folder(out)
        return 0

    plan = RolloutPlan(
        suite="service_repair",
        policy=Policy(manifest=an_artifact(desk, "policy", make), version=3),
        requests=tuple(GroupRequest(group_id=f"p000-{t.task_id}", task=t, size=2) for t in POOL.tasks),
        iteration=0,
        sampling=Sampling(seed=1),
    )
    return evaluations_of(desk, plan, config=RolloutConfig(), gates=GateConfig())


def rolled_out(desk, groups):
    def make(out, scratch):
        journal = Journal(scratch)
        for member in (m for g in groups for m in g.members):
            journal.add(member, member.rollout_id.encode())
        return write_rollouts(groups, journal, out)

    return an_artifact(desk, "rollouts", make)


def test_a_group_is_named_by_what_decides_it_and_kept_with_its_states(tmp_path):
    desk = desk_at(tmp_path)
    plan, evaluations = named(desk, tmp_path)
    assert [r.group_id for r in plan.requests] == list(evaluations)
    assert [name.rsplit("-", 1)[1] for name in evaluations] == ["a", "b"]
    assert [is_kept(desk, e) for e in evaluations.values()] == [False, False]
    groups = [a_group(r.group_id, r.task, 2, version=3) for r in plan.requests]
    for work in keep(desk, rolled_out(desk, groups), evaluations):
        perform(desk, work)
    found = [perform(desk, kept(e)) for e in evaluations.values()]
    assert [read_groups(desk, m) for m in found] == [[g] for g in groups]
    states = desk.store.path(found[0]) / "states"
    assert sorted(p.name for p in states.iterdir()) == [f"{groups[0].group_id}-{i}.tar" for i in (0, 1)]


def test_a_group_that_lost_members_is_not_kept(tmp_path):
    desk = desk_at(tmp_path)
    plan, evaluations = named(desk, tmp_path)
    whole, torn = (a_group(r.group_id, r.task, 2) for r in plan.requests)
    lost = Exclusion(rollout_id=torn.members[1].rollout_id, reason="the box was lost")
    torn = replace(torn, members=torn.members[:1], excluded=(lost,))
    (work,) = keep(desk, rolled_out(desk, [whole, torn]), evaluations)
    assert work.key(desk) == kept(evaluations[whole.group_id]).key(desk)


def test_what_was_lost_meanwhile_is_said_as_a_fault_of_the_store(tmp_path):
    desk = desk_at(tmp_path)
    _, evaluations = named(desk, tmp_path)
    with pytest.raises(StoreError, match="is lost; run the same command again"):
        perform(desk, kept(next(iter(evaluations.values()))))
