"""What the stages of one process share, and how its weights change under those who use it."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest
from fakes import make_tiny_folder
from polar_fakes import PLENTY, STOP, ScriptedEngine

from infra.engines.base import Sampling
from tasks.workshop import EngineConfig, Workshop


class ScriptedWorkshop(Workshop):
    """A workshop whose engine speaks by script."""

    async def _start_engine(self, folder, version):
        return ScriptedEngine(folder, lambda r: "ok" + STOP)


async def ask(recorder):
    endpoint = recorder.open("r1", sampling=Sampling(max_tokens=9), budget=PLENTY)
    key = {"authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(transport=endpoint.transport, base_url=endpoint.base_url, headers=key) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    return answer.status_code, (await recorder.close("r1")).calls[0].policy_version


async def be_silent(engine):
    engine.may_speak.clear()


async def until_it_speaks(engine):
    async with asyncio.timeout(60):
        while not engine.speaking:
            await asyncio.sleep(0.01)


async def let_speak(engine):
    await asyncio.sleep(0.1)
    engine.may_speak.set()


def test_a_swap_waits_for_the_calls_that_the_recorder_has_running(tmp_path):
    folder = make_tiny_folder(tmp_path / "model", vocab=512, layers=1, hidden=32)
    answers = []
    with ScriptedWorkshop(EngineConfig(), tmp_path / "work") as workshop:
        engine = workshop.engine(folder, 0)
        recorder = workshop.recorder(engine)
        caller = threading.Thread(target=lambda: answers.append(workshop.run(ask, recorder)))
        workshop.run(be_silent, engine)
        caller.start()
        workshop.run(until_it_speaks, engine)
        speaker = threading.Thread(target=lambda: workshop.run(let_speak, engine))
        speaker.start()
        assert workshop.engine(folder, 1).policy_version == 1
        caller.join()
        speaker.join()
        with pytest.raises(RuntimeError, match="never goes back"):
            workshop.engine(folder, 0)
    assert answers == [(200, 0)]
    assert engine.swapped_while_speaking == [0]
