"""A full disk under the call log is ours: an infra fault that is refilled, whatever the harness says."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from harness_rooms import one_rollout, replayed, room_for

from environments.harnesses.base import HarnessOutcome
from environments.suites.service_repair.suite import task_of

TASK = task_of(seed=11, horizon=3)


@contextmanager
def full_disk(log: Path) -> Iterator[None]:
    """No file of this process may outgrow the call log."""
    (path,) = log.glob("*.polarlog")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class AsksOnAFullDisk:
    """Asks once while the disk is full, and gives up as external harnesses do."""

    name = "asks_on_a_full_disk"

    def __init__(self, log: Path) -> None:
        self.log = log

    async def run(self, task, *, suite, sandbox, endpoint):
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": task.instruction}]}
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        with full_disk(self.log):
            async with httpx.AsyncClient(transport=endpoint.transport) as client:
                answer = await client.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers)
        assert answer.json()["error"]["code"] == "log_error"
        return HarnessOutcome(status="agent_fault", fault="it gave up", turns=(), final_payload=None)


class DoesNothing:
    """Ends at once."""

    name = "does_nothing"

    async def run(self, task, *, suite, sandbox, endpoint):
        return HarnessOutcome(status="completed", fault="", turns=(), final_payload="done")


async def test_a_harness_that_gives_up_on_a_full_disk_is_not_at_fault(short_folder, tmp_path):
    harness = AsksOnAFullDisk(tmp_path / "calls")
    async with room_for(harness, replayed(short_folder, []), tmp_path) as (room, _):
        trajectory = await one_rollout(room, TASK)
    assert trajectory.status == "infra_fault"
    assert "cannot write the log" in trajectory.fault


@pytest.mark.parametrize("step", ["open", "close"])
async def test_a_log_that_can_be_neither_opened_nor_closed_is_a_fault_and_no_crash(step, short_folder, tmp_path):
    async with room_for(DoesNothing(), replayed(short_folder, []), tmp_path) as (room, _):
        recorder = room.recorder

        class Full:
            """The recorder, on a disk that is full at one step."""

            def open(self, rollout_id, **how):
                if step == "close":
                    return recorder.open(rollout_id, **how)
                with full_disk(tmp_path / "calls"):
                    return recorder.open(rollout_id, **how)

            async def close(self, rollout_id):
                with full_disk(tmp_path / "calls"):
                    return await recorder.close(rollout_id)

        full = replace(room, recorder=Full())
        trajectory = await one_rollout(full, TASK)
        assert trajectory.status == "infra_fault"
        assert trajectory.fault.startswith("call log: LogFailed: cannot write the log")
        assert (await one_rollout(room, TASK)).status == "completed"
