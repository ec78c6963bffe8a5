"""The recorder before the real engines: what is on record scores the same again, and a rerun records the same."""

from __future__ import annotations

import os
import sys

import pytest
from polar_fakes import PLENTY, STOP, ScriptedEngine, call_text, message_of, recorder_for, talking

from environments.polar.command import record_command
from environments.polar.deployment import deployment_gap
from environments.polar.recorder import PolarRecorder
from environments.polar.replay import open_logs
from infra.engines.base import Sampling
from infra.engines.forced import ForcedEngine
from infra.engines.local import LocalEngine


@pytest.fixture
async def local(tiny_folder):
    engine = LocalEngine(tiny_folder)
    yield engine
    await engine.aclose()


async def converse(engine, folder, rendering, *, turns=3):
    """A conversation that is streamed every other turn, with a helper beside it."""
    async with recorder_for(engine, folder, rendering) as recorder, talking(recorder, max_tokens=24) as talker:
        for turn in range(turns):
            await talker.ask(f"Turn {turn}.", stream=turn % 2 == 1)
        await talker.post([{"role": "system", "content": "Explore."}, {"role": "user", "content": "Find it."}])
        return await recorder.close("r1")


async def test_each_recorded_logprob_is_what_a_plain_forward_pass_gives(tmp_path, local, rendering):
    recording = await converse(local, tmp_path, rendering)
    assert len(recording.chains) == 2
    worst = 0.0
    for chain in recording.chains:
        again = await local.score([i for s in chain.segments for i in s.ids])
        at = 0
        for segment in chain.segments:
            if segment.trainable:
                pairs = zip(segment.logprobs, again[at - 1 :], strict=False)
                worst = max(worst, *(abs(a - b) for a, b in pairs))
            at += len(segment.ids)
    assert worst <= 1e-4


async def test_the_same_rollout_again_records_the_same_chains(tmp_path, local, rendering):
    first = await converse(local, tmp_path / "a", rendering)
    second = await converse(local, tmp_path / "b", rendering)
    assert first.chains == second.chains
    assert first.chains[0].num_trainable > 10


async def test_a_served_history_that_is_rendered_anew_has_a_gap_that_is_measured(tmp_path, local, rendering):
    odd = "<think>\n\n  spaced   thought\n\n\n</think>\n\n\n\nI   look. \n" + call_text("ls")
    engine = ForcedEngine(local, lambda request: odd.removesuffix(STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("out")
        await talker.ask()
        await recorder.close("r1")
    gaps = await deployment_gap(open_logs(tmp_path).rollouts["r1"], rendering, engine)
    assert [gap.same_prompt for gap in gaps] == [True, False]
    assert set(gaps[0].differences) == {0.0}
    assert max(abs(x) for x in gaps[1].differences) > 1e-3


async def test_a_recorder_may_serve_plainly_and_then_renders_each_prompt_whole(tmp_path, tiny_folder, rendering):
    odd = "I   look. \n" + call_text("ls")
    engine = ScriptedEngine(tiny_folder, lambda r: odd)
    async with recorder_for(engine, tmp_path, rendering, rerender=True) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("out")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [c.cause for c in recording.calls] == ["root", "template"]
    kept = list(engine.requests[0].prompt_ids) + engine.encode(odd)
    assert list(engine.requests[1].prompt_ids)[: len(kept)] != kept


COMMAND = """
import os, openai, anthropic
chat = openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
message = anthropic.Anthropic().messages.create(
    model="m", max_tokens=9, messages=[{"role": "user", "content": "y"}])
assert (chat.choices[0].message.content, message.content[0].text) == ("ok", "ok")
raise SystemExit(3)
"""


async def test_any_command_that_honours_a_base_url_is_recorded(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    recorder = PolarRecorder(engine, tmp_path, rendering=rendering)
    done = await record_command(
        recorder,
        [sys.executable, "-c", COMMAND],
        rollout_id="r1",
        sampling=Sampling(),
        budget=PLENTY,
        environment=dict(os.environ),
    )
    await recorder.aclose()
    assert done.exit_code == 3
    assert [c.wire for c in done.recording.calls] == ["chat", "messages"]


async def test_a_streamed_answer_says_what_a_whole_one_says(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls", "hm"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        asked = [{"role": "user", "content": "x"}]
        streamed = message_of(await talker.post(asked, stream=True))
        whole = message_of(await talker.post([*asked, {"role": "user", "content": "y"}]))
    assert streamed["tool_calls"][0]["function"] == whole["tool_calls"][0]["function"]
    assert streamed["reasoning_content"] == whole["reasoning_content"] == "hm"
