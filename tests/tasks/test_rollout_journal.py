"""Finished rollouts are on disk: a torn line is cut off, and nothing that is there is done twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from tasks_fakes import a_trajectory

from environments.harnesses.base import Endpoint, HarnessOutcome
from environments.polar.base import Recording
from environments.rollout import GroupRequest, RolloutRoom, roll_out_groups
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.suites.service_repair.suite import ServiceRepair
from infra.engines.base import Sampling
from tasks.rollouts import Journal


def test_a_journal_reads_back_what_was_added_and_its_states(tmp_path):
    journal = Journal(tmp_path)
    journal.add(a_trajectory("g", 0, "t1"), b"a tar")
    journal.add(a_trajectory("g", 1, "t1"), None)
    again = Journal(tmp_path)
    assert again.find("g-0") == a_trajectory("g", 0, "t1")
    assert again.find("g-1") == a_trajectory("g", 1, "t1")
    assert again.find("g-2") is None
    assert [(p.name, p.read_bytes()) for p in again.states.iterdir()] == [("g-0.tar", b"a tar")]


@pytest.mark.parametrize("left", [1, 100])
def test_a_last_line_that_a_kill_cut_short_is_cut_off(tmp_path, left):
    journal = Journal(tmp_path)
    journal.add(a_trajectory("g", 0, "t1"), None)
    whole = (tmp_path / "trajectories.jsonl").read_bytes()
    with (tmp_path / "trajectories.jsonl").open("ab") as stream:
        stream.write(whole[:left])
    again = Journal(tmp_path)
    assert again.find("g-0") is not None
    assert (tmp_path / "trajectories.jsonl").read_bytes() == whole
    again.add(a_trajectory("g", 1, "t1"), None)
    assert Journal(tmp_path).find("g-1") == a_trajectory("g", 1, "t1")


class Killed(BaseException):
    """The process goes down."""


@dataclass
class OneCommand:
    """A harness that runs one real command, and dies at the rollout with number `dies_at`."""

    dies_at: int | None = None
    name: str = "one_command"
    done: list[str] = field(default_factory=list)

    async def run(self, task, *, suite, sandbox, endpoint):
        if len(self.done) == self.dies_at:
            raise Killed
        result = await sandbox.run("touch seen; ls")
        assert "seen" in result.output
        self.done.append(endpoint.api_key)
        return HarnessOutcome(status="completed", fault="", turns=(), final_payload="done")


class SilentRecorder:
    """Records nothing: the harness asks no model."""

    def open(self, rollout_id, *, sampling, budget):
        return Endpoint(base_url="", api_key=rollout_id, model="none")

    async def close(self, rollout_id):
        return Recording(calls=(), chains=(), turns=(), outcomes={}, broken=(), budget_hit=False)


def test_rollouts_that_were_finished_before_a_kill_are_not_done_twice(tmp_path):
    suite = ServiceRepair()
    task = suite.pool(split="train", size=1, seed=1, min_horizon=3, max_horizon=3).tasks[0]
    requests = (GroupRequest(group_id="g", task=task, size=3),)

    def room(harness):
        return RolloutRoom(
            suite=suite,
            harness=harness,
            boxes=BubblewrapProvider(),
            recorder=SilentRecorder(),
            log=Journal(tmp_path),
            sampling=Sampling(),
            concurrency=1,
        )

    first, second = OneCommand(dies_at=2), OneCommand()
    with pytest.raises(Killed):
        asyncio.run(roll_out_groups(requests, room(first)))
    (group,) = asyncio.run(roll_out_groups(requests, room(second)))
    assert (first.done, second.done) == (["g-0", "g-1"], ["g-2"])
    assert [m.rollout_id for m in group.members] == ["g-0", "g-1", "g-2"]
    assert sorted(p.name for p in (tmp_path / "states").iterdir()) == ["g-0.tar", "g-1.tar", "g-2.tar"]
