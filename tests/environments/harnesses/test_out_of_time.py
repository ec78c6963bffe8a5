"""The clock stops a harness in the box: an agent that stalls is at fault, a model that stalls is not."""

from __future__ import annotations

import json
from dataclasses import replace

from harness_rooms import one_rollout, replayed, room_for

from environments.harnesses.base import HarnessOutcome
from environments.harnesses.equipment import PROXY_PORT, Equipment, url_in_box
from environments.harnesses.inside import Invocation, run_inside
from environments.suites.service_repair.suite import task_of
from environments.types import Limits

TASK = replace(task_of(seed=11, horizon=3), limits=Limits(max_turns=8, max_tokens=400, wall_time_s=6.0))
ASK = (
    "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'POST {path} HTTP/1.1\\r\\nhost: x\\r\\n"
    "authorization: Bearer {key}\\r\\ncontent-length: {size}\\r\\n\\r\\n{body}' >&3; cat <&3; sleep 60"
)


class Stalls:
    """A harness in the box that never ends; with `asks` it waits for the model, else for nothing."""

    name = "stalls"
    equipment = Equipment(mounts=(), memory_mb=64, processes=8, disk_mb=8, cpu_s=10.0)

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks

    async def run(self, task, *, suite, sandbox, endpoint):
        words = "echo left > file; sleep 60"
        if self.asks:
            body = json.dumps({"model": endpoint.model, "messages": [{"role": "user", "content": "Mend it."}]})
            path = url_in_box(endpoint).split(str(PROXY_PORT))[1] + "/chat/completions"
            words = ASK.format(port=PROXY_PORT, path=path, key=endpoint.api_key, size=len(body), body=body)
        ended = await run_inside(sandbox, Invocation(argv=("bash", "-c", words)), task)
        assert isinstance(ended, HarnessOutcome)
        return ended


async def test_an_agent_that_stalls_has_spent_its_own_time_and_is_judged_by_what_it_left(short_folder, tmp_path):
    async with room_for(Stalls(asks=False), replayed(short_folder, []), tmp_path) as (room, _):
        trajectory = await one_rollout(room, TASK)
        assert (trajectory.status, trajectory.fault) == ("budget_exhausted", "box time: 5 of 3 used")
        assert room.log.states[trajectory.rollout_id] is not None


async def test_a_model_that_stalls_is_ours(short_folder, tmp_path):
    engine = replayed(short_folder, ["hello"])
    engine.may_speak.clear()
    async with room_for(Stalls(asks=True), engine, tmp_path) as (room, _):
        trajectory = await one_rollout(room, TASK)
    assert trajectory.status == "infra_fault"
    assert trajectory.fault == "host: wall time: calls of the model took 5 of 6 s"
