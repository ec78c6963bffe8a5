"""What the stages of one process share, and how its weights change under those who use it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import httpx
import pytest
import torch
from fakes import make_tiny_folder
from polar_fakes import PLENTY, STOP, ScriptedEngine
from transformers import AutoModelForCausalLM
from vllm_wire import served, wire_app

from infra.engines.base import Sampling
from infra.engines.local import LocalEngine
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


@pytest.mark.parametrize("as_found", [False, True])
def test_a_run_gives_its_own_weights_to_a_server_that_holds_those_of_another(tmp_path, as_found):
    folder, left = (make_tiny_folder(tmp_path / name, seed=seed) for seed, name in enumerate(("own", "left")))
    local = LocalEngine(left)
    with (
        served(wire_app(local)) as url,
        Workshop(EngineConfig(kind="vllm", url=url), tmp_path / "work", server_as_found=as_found) as workshop,
    ):
        engine = workshop.engine(folder, 3)
        assert engine.policy_version == 3
        scores = workshop.run(engine.score, [1, 2, 3, 4])
    asyncio.run(local.aclose())
    own, other = (tuple(scores_of(path, [1, 2, 3, 4])) for path in (folder, left))
    assert scores == pytest.approx(other if as_found else own, abs=1e-5)
    assert own != pytest.approx(other, abs=1e-2)


def scores_of(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    return [logprobs[i - 1, ids[i]].item() for i in range(1, len(ids))]


def test_an_interrupt_ends_the_work_that_was_waited_for_before_anything_is_closed(tmp_path):
    begun, told = threading.Event(), []

    async def stuck():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)  # as a box takes its time to be stopped
            told.append("work ended")

    def interrupt():
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt).start()
        with Workshop(EngineConfig(), tmp_path / "work") as workshop:
            with pytest.raises(KeyboardInterrupt):
                workshop.run(stuck)
            told.append("closing")
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == ["work ended", "closing"]
