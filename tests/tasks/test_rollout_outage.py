"""An outage fails the stage and not the run: nothing is published, and the same command goes on when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from fakes import make_tiny_folder
from tasks_fakes import desk_at

from environments.gates.judge import GateConfig
from environments.harnesses.base import HarnessOutcome
from environments.rollout import GroupRequest
from environments.sandboxes.base import SandboxError
from environments.suites.service_repair.suite import ServiceRepair
from infra.engines.base import EngineError, Sampling
from tasks.policies import Policy, adopt
from tasks.rollouts import HARNESSES, RolloutConfig, RolloutPlan, read_groups, roll_out
from tasks.stage import Desk, perform


@dataclass
class Flaky:
    """A harness that asks nothing of the model; the first `lost` rollouts it is given meet a host that is down."""

    lost: int
    name: str = "flaky"
    seen: list[str] = field(default_factory=list)

    async def run(self, task, *, suite, sandbox, endpoint):
        self.seen.append(endpoint.base_url)
        if len(self.seen) <= self.lost:
            raise SandboxError("the host is down")
        return HarnessOutcome(status="agent_fault", fault="", turns=(), final_payload=None)


@pytest.fixture(scope="module")
def plan_at(tmp_path_factory):
    folder = make_tiny_folder(tmp_path_factory.mktemp("policy"))

    def plan(desk: Desk) -> RolloutPlan:
        policy = Policy(manifest=perform(desk, adopt(folder, digest=None)), version=2)
        tasks = ServiceRepair().pool(split="train", size=2, seed=1, min_horizon=3, max_horizon=3).tasks
        requests = tuple(GroupRequest(group_id=f"g{n}", task=task, size=5) for n, task in enumerate(tasks))
        return RolloutPlan(
            suite="service_repair", policy=policy, requests=requests, iteration=None, sampling=Sampling()
        )

    return plan


@pytest.fixture
def flaky():
    """A harness by the name 'flaky', that fails as often as is asked."""
    made: list[Flaky] = []

    def use(lost: int) -> Flaky:
        made.append(Flaky(lost))
        return made[-1]

    HARNESSES["flaky"] = lambda config, gates: made[-1]
    yield use
    del HARNESSES["flaky"]


def rolled_out(desk: Desk, plan: RolloutPlan):
    config = RolloutConfig(harness="flaky", concurrency=1, max_refills=0)
    return read_groups(desk, perform(desk, roll_out(desk, plan, parents=(), config=config, gates=GateConfig())))


def test_after_an_outage_the_same_stage_keeps_what_was_finished_and_does_the_rest_again(tmp_path, plan_at, flaky):
    desk = desk_at(tmp_path)
    with desk.workshop:
        plan, first = plan_at(desk), flaky(lost=3)
        with pytest.raises(EngineError) as error:
            rolled_out(desk, plan)
        assert "3 of 10 rollouts were lost to faults of ours (3 times sandbox: SandboxError: the host" in str(
            error.value
        )
        assert "the same command again" in str(error.value)
        second = flaky(lost=0)
        groups = rolled_out(desk, plan)
        assert [len(g.members) for g in groups] == [5, 5]
        assert (len(first.seen), len(second.seen)) == (10, 3)
        assert {m.policy_versions for g in groups for m in g.members} == {(2, 2)}


def test_a_few_lost_rollouts_are_left_out_and_said(tmp_path, plan_at, flaky):
    desk = desk_at(tmp_path)
    with desk.workshop:
        flaky(lost=2)
        first, second = rolled_out(desk, plan_at(desk))
        assert (len(first.members), len(second.members)) == (3, 5)
        assert [e.reason for e in first.excluded] == ["sandbox: SandboxError: the host is down"] * 2
        assert not first.complete
