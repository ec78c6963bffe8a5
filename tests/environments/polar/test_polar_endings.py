"""Requests that cross with an ending: of their rollout, of the call they repeat, of the line they are answered on."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from polar_fakes import BASH, STOP, ScriptedEngine, message_of, recorder_for, scope_of, talking

from environments.polar.replay import replay
from environments.polar.server import serving
from environments.polar.summary import summarise

LONG = "one two three four five six seven eight nine ten" + STOP


def body(text="x", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "tools": [BASH], **more}


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


class SlowToClose(ScriptedEngine):
    """Takes its time to end what was aborted, and to forget a session until `may_close`."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()
        self.may_close.set()

    async def stream(self, request):
        try:
            async for delta in super().stream(request):
                yield delta
        finally:
            await asyncio.sleep(0.3)

    async def close_session(self, session_id):
        self.closing.set()
        await self.may_close.wait()
        await super().close_session(session_id)


class Line:
    """A client of the ASGI app whose request and answer go on only as far as the test lets them."""

    def __init__(self, talker, path="/v1/chat/completions"):
        self._scope = scope_of(f"{talker.endpoint.base_url}{path}", talker.endpoint.api_key)
        self.may_send, self.may_receive, self.half_sent = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.leaves, self.is_sent = asyncio.Event(), asyncio.Event()
        self.answer = []

    async def ask(self, app, payload):
        parts = [json.dumps(payload).encode()[:9], json.dumps(payload).encode()[9:]]

        async def receive():
            if len(parts) == 1:
                self.half_sent.set()
                await self.may_send.wait()
            if not parts:
                await self.leaves.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message):
            if message["type"] == "http.response.body":
                self.is_sent.set()
                await self.may_receive.wait()
            self.answer.append(message)

        await app(self._scope, receive, send)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("closed_first", [True, False])
async def test_a_request_that_arrives_while_its_rollout_closes_is_refused_and_leaves_no_trace(
    tmp_path, tiny_folder, rendering, closed_first, path
):
    engine = SlowToClose(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        line = Line(talker, path)
        line.may_receive.set()
        asked = asyncio.create_task(line.ask(recorder.app, body(max_tokens=9) | {"tools": []}))
        await line.half_sent.wait()
        engine.may_close.clear()
        closing = asyncio.create_task(recorder.close("r1"))
        await engine.closing.wait()
        if closed_first:
            engine.may_close.set()
            await closing
        line.may_send.set()
        await asked
        engine.may_close.set()
        recording = await closing
    assert line.answer[0]["status"] == 401
    assert (len(engine.requests), len(recording.calls)) == (1, 1)
    assert len(engine.closed_sessions) == 1
    assert replay(tmp_path, "r1") == recording


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_arrives_after_its_rollout_was_closed_adds_nothing_to_the_record(
    tmp_path, tiny_folder, rendering, stream
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        line = Line(talker)
        line.may_send.set()
        asked = asyncio.create_task(line.ask(recorder.app, body(stream=stream)))
        await until(lambda: recorder.log.fsync_count > 1)
        await asyncio.sleep(0.05)
        recording = await recorder.close("r1")
        line.may_receive.set()
        await asked
    assert line.answer[0]["status"] == 200
    assert [c.state for c in recording.calls] == ["complete"]
    assert replay(tmp_path, "r1") == recording


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_joins_no_call_that_is_being_aborted(tmp_path, tiny_folder, rendering, stream):
    engine = SlowToClose(tiny_folder, lambda r: LONG, token_s=0.02)
    async with recorder_for(engine, tmp_path, rendering) as recorder, serving(recorder), talking(recorder) as talker:
        asked = asyncio.create_task(talker.client.post("/v1/chat/completions", json=body(stream=stream)))
        await until(lambda: engine.speaking)
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        await until(lambda: engine.aborted)
        again = await talker.client.post("/v1/chat/completions", json=body(stream=stream))
        assert (again.status_code, message_of(again)["content"]) == (200, LONG.removesuffix(STOP))
        recording = await recorder.close("r1")
    assert [(c.state, c.cause) for c in recording.calls] == [("cancelled", "root"), ("complete", "retry")]
    assert {r.call_index for r in engine.requests} == {0}
    assert [c.fork_cause for c in recording.chains] == ["root"]


async def lose(recorder, talker, payload):
    """Ask, with a line that breaks when the end of the answer is sent."""
    line = Line(talker)
    line.may_send.set()

    async def app(scope, receive, send):
        async def broken(message):
            if message["type"] == "http.response.body" and (not payload["stream"] or b"[DONE]" in message["body"]):
                raise ConnectionError("the line is dead")

        await recorder.app(scope, receive, broken)

    with contextlib.suppress(ConnectionError):
        await line.ask(app, payload)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("goes_on", ["not at all", "without it", "from it", "from it, in vain"])
async def test_an_answer_that_nobody_had_whole_trains_only_where_the_harness_went_on_from_it(
    tmp_path, tiny_folder, rendering, stream, goes_on
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok then" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        history = body()["messages"]
        await lose(recorder, talker, body(stream=stream))
        said = [{"role": "assistant", "content": "ok then"}] if goes_on.startswith("from it") else []
        more = [*history, *said, {"role": "user", "content": "more"}]
        if goes_on == "from it, in vain":
            await lose(recorder, talker, {**body(stream=stream), "messages": more})
        elif goes_on != "not at all":
            assert (await talker.post(more)).status_code == 200
        recording = await recorder.close("r1")
    trained = {s.call_id for c in recording.chains for s in c.segments if s.trainable}
    want = {"not at all": [False], "without it": [False, True], "from it": [True, True]}
    assert [c.call_id in trained for c in recording.calls] == want.get(goes_on, [True, False])
    assert (recording.broken, {c.state for c in recording.calls}) == ((), {"complete"})
    summary = summarise([recording])
    assert summary.trainable + summary.untrained == summary.sampled
    assert replay(tmp_path, "r1") == recording


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_sent_to_a_client_that_has_left_was_not_delivered(
    tmp_path, tiny_folder, rendering, stream
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok then" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        line = Line(talker)
        line.may_send.set()
        asked = asyncio.create_task(line.ask(recorder.app, body(stream=stream)))
        await line.is_sent.wait()
        await until(lambda: recorder.log.fsync_count > 1)
        await asyncio.sleep(0.05)
        line.leaves.set()
        await asyncio.sleep(0.05)
        line.may_receive.set()
        await asked
        recording = await recorder.close("r1")
    (call,) = recording.calls
    assert (call.state, call.delivered_count < len(call.completion_ids)) == ("complete", True)
    assert (recording.chains, recording.broken) == ((), ())


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_a_retry_got_after_all_trains_once(tmp_path, tiny_folder, rendering, stream):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok then" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await lose(recorder, talker, body(stream=stream))
        await talker.client.post("/v1/chat/completions", json=body(stream=stream))
        recording = await recorder.close("r1")
    (call,), (chain,) = recording.calls, recording.chains
    assert call.delivered_count == chain.num_trainable == len(call.completion_ids)


async def test_a_stream_is_on_record_as_delivered_when_its_last_event_leaves(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok then" + STOP)
    async with (
        recorder_for(engine, tmp_path, rendering) as recorder,
        serving(recorder),
        talking(recorder) as talker,
        talker.client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer,
    ):
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                recording = await recorder.close("r1")
    assert [c.num_trainable for c in recording.chains] == [len(recording.calls[0].completion_ids)]
