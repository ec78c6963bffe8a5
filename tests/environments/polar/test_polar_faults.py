"""What goes wrong between harness, proxy and engine, and what is on record afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import resource

import anthropic
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polar_fakes import (
    BASH,
    PLENTY,
    STOP,
    ScriptedEngine,
    call_text,
    in_turn,
    message_of,
    recorder_for,
    scope_of,
    talking,
)

from environments.polar.base import SessionBudget
from environments.polar.server import serving
from infra.engines.base import Sampling, TokenDelta

LONG = "one two three four five six seven eight nine ten" + STOP


@contextlib.asynccontextmanager
async def on_loopback(tmp_path, tiny_folder, rendering, script, *, settings=None, **engine):
    """A recorder on a real socket: (recorder, engine, endpoint, client)."""
    spoken = ScriptedEngine(tiny_folder, script, **engine)
    async with recorder_for(spoken, tmp_path, rendering, **(settings or {})) as recorder, serving(recorder):
        endpoint = recorder.open("r1", sampling=Sampling(max_tokens=400), budget=PLENTY)
        headers = {"authorization": f"Bearer {endpoint.api_key}"}
        async with httpx.AsyncClient(base_url=endpoint.base_url, headers=headers, timeout=30) as client:
            yield recorder, spoken, client


def body(text="x", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "tools": [BASH], **more}


async def ask_and_leave(client, engine, payload):
    """Send a request, and hang up once it has reached the engine (or joined what runs there)."""
    asked = asyncio.create_task(client.post("/v1/chat/completions", json=payload))
    await until(lambda: engine.requests)
    await asyncio.sleep(0.1)
    asked.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asked


async def until(condition, timeout_s=60.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_aborts_the_engine_and_the_record_says_so(tmp_path, tiny_folder, rendering, stream):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.05) as (
        recorder,
        engine,
        client,
    ):
        await ask_and_leave(client, engine, body(stream=stream))
        await until(lambda: engine.aborted)
        recording = await recorder.close("r1")
    (call,) = recording.calls
    assert (call.state, call.finish_reason) == ("cancelled", "abort")
    assert call.delivered_count <= len(call.completion_ids) < 20
    assert recording.chains == ()
    assert recording.broken == ()


async def test_a_stream_that_is_left_records_what_was_sent(tmp_path, tiny_folder, rendering):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.03) as (
        recorder,
        engine,
        client,
    ):
        text = ""
        async with client.stream("POST", "/v1/chat/completions", json=body(stream=True)) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                if len(text) > 10:
                    break
        await until(lambda: engine.aborted)
        recording = await recorder.close("r1")
    (call,) = recording.calls
    assert call.state == "cancelled"
    assert rendering.text(call.completion_ids).startswith(text)
    assert call.delivered_count >= len(engine.encode(text)) - 1


async def test_a_retry_after_a_client_left_gets_the_same_randomness_and_joins_the_chain(
    tmp_path, tiny_folder, rendering
):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.02) as (
        recorder,
        engine,
        client,
    ):
        await ask_and_leave(client, engine, body())
        await until(lambda: engine.aborted)
        done = await client.post("/v1/chat/completions", json=body())
        assert done.status_code == 200
        recording = await recorder.close("r1")
    assert [(c.state, c.cause) for c in recording.calls] == [("cancelled", "root"), ("complete", "retry")]
    assert {r.call_index for r in engine.requests} == {0}
    assert [c.fork_cause for c in recording.chains] == ["root"]


@pytest.mark.parametrize("second_streams", [False, True])
async def test_two_equal_requests_at_once_share_one_generation(tmp_path, tiny_folder, rendering, second_streams):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.01) as (
        recorder,
        engine,
        client,
    ):
        first, second = await asyncio.gather(
            client.post("/v1/chat/completions", json=body(stream=True)),
            client.post("/v1/chat/completions", json=body(stream=second_streams)),
        )
        assert len(engine.requests) == 1
        assert first.text.endswith("data: [DONE]\n\n")
        for answer in (first, second):
            assert message_of(answer)["content"] == LONG.removesuffix(STOP)
        assert len((await recorder.close("r1")).calls) == 1


async def test_one_of_two_listeners_may_leave_without_ending_the_call(tmp_path, tiny_folder, rendering):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.03) as (
        _,
        engine,
        client,
    ):
        stays = asyncio.create_task(client.post("/v1/chat/completions", json=body()))
        await ask_and_leave(client, engine, body())
        assert (await stays).status_code == 200
        assert engine.aborted == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_never_wholly_arrived_is_replayed_and_not_sampled_again(
    tmp_path, tiny_folder, rendering, stream
):
    engine = ScriptedEngine(tiny_folder, in_turn("first" + STOP, "second" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        asgi, path = recorder.app, f"{talker.endpoint.base_url}/v1/chat/completions"
        key = talker.endpoint.api_key
        with contextlib.suppress(ConnectionError):
            await post_and_lose_the_answer(asgi, path, key, body(stream=stream))
        again = await talker.client.post(path, json=body(stream=not stream))
        assert message_of(again)["content"] == "first"
        after = await talker.client.post(path, json=body(stream=stream))
        assert message_of(after)["content"] == "second"
        recording = await recorder.close("r1")
    assert [(c.state, c.cause) for c in recording.calls] == [("complete", "root"), ("complete", "resample")]


async def post_and_lose_the_answer(app, url, key, payload):
    """An ASGI client whose connection breaks when the end of the answer is sent."""
    sent = iter([{"type": "http.request", "body": json.dumps(payload).encode(), "more_body": False}])
    forever = asyncio.Event()

    async def receive():
        message = next(sent, None)
        if message is None:
            await forever.wait()
        return message

    async def send(message):
        if message["type"] == "http.response.body" and (not payload["stream"] or b"[DONE]" in message["body"]):
            raise ConnectionError("the line is dead")

    await app(scope_of(url, key), receive, send)


async def test_silence_of_the_engine_is_filled_with_comments(tmp_path, tiny_folder, rendering):
    slow = {"token_s": 0.3, "settings": {"keep_alive_s": 0.1}}
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: "hi" + STOP, **slow) as (_, _, client):
        answer = await client.post("/v1/chat/completions", json=body(stream=True))
    assert answer.text.count(": keep-alive\n\n") >= 2
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_full_waiting_room_answers_429_and_who_waits_is_served(tmp_path, tiny_folder, rendering):
    limits = {"max_running": 2, "max_waiting": 3}
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, settings=limits) as opened:
        recorder, engine, client = opened
        engine.may_speak.clear()
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=body(f"q{i}"))) for i in range(5)]
        await until(lambda: recorder.gate.running + recorder.gate.waiting == 5 and engine.speaking == 2)
        late = await client.post("/v1/chat/completions", json=body("late"))
        assert (late.status_code, late.headers["retry-after"]) == (429, "1")
        engine.may_speak.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 5


async def test_a_weight_swap_waits_for_running_calls_and_refuses_none(tmp_path, tiny_folder, rendering):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG) as (recorder, engine, client):
        engine.may_speak.clear()
        before = asyncio.create_task(client.post("/v1/chat/completions", json=body("a")))
        await until(lambda: engine.speaking)
        swap = asyncio.create_task(recorder.load_weights(tiny_folder, 1))
        await asyncio.sleep(0)
        after = asyncio.create_task(client.post("/v1/chat/completions", json=body("b")))
        await until(lambda: recorder.gate.waiting)
        assert not swap.done()
        engine.may_speak.set()
        await swap
        assert [(await t).status_code for t in (before, after)] == [200, 200]
        recording = await recorder.close("r1")
    assert engine.swapped_while_speaking == [0]
    assert [c.policy_version for c in recording.calls] == [0, 1]


async def test_weights_that_change_within_a_call_break_it(tmp_path, tiny_folder, rendering):
    class Swapping(ScriptedEngine):
        async def stream(self, request):
            yield TokenDelta(ids=(5,), logprobs=(-1.0,), policy_version=0)
            yield TokenDelta(ids=(6,), logprobs=(-1.0,), policy_version=1, finish_reason="stop")

    engine = Swapping(tiny_folder, lambda r: "")
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        answer = await talker.post([{"role": "user", "content": "x"}], stream=True)
        assert "weights changed" in answer.text
        recording = await recorder.close("r1")
    assert [c.state for c in recording.calls] == ["broken"]
    assert recording.broken == (recording.calls[0].call_id,)


@pytest.mark.parametrize("logprobs", [(-1.0,), (float("nan"), -1.0), (0.5, -1.0), (float("-inf"), -1.0)])
async def test_tokens_without_a_sound_logprob_of_their_own_break_the_call(tmp_path, tiny_folder, rendering, logprobs):
    class Careless(ScriptedEngine):
        async def stream(self, request):
            yield TokenDelta(ids=(5, 6), logprobs=logprobs, policy_version=0, finish_reason="stop")

    engine = Careless(tiny_folder, lambda r: "")
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        answer = await talker.post([{"role": "user", "content": "x"}])
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_error")
        recording = await recorder.close("r1")
    assert recording.broken
    assert recording.chains == ()


class FailsLater:
    """A rendering that cannot go on from any answer, nor render as many tools as three."""

    def __init__(self, rendering):
        self._rendering = rendering

    def __getattr__(self, name):
        return getattr(self._rendering, name)

    def tail(self, *args):
        raise ZeroDivisionError("a bug in the bridge")

    def prompt(self, messages, tools):
        return self._rendering.prompt(messages, tools) if len(tools) < 3 else 1 // 0


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
async def test_a_bug_of_ours_is_told_in_the_sdks_own_shape_and_is_no_fault_of_the_agents(
    tmp_path, tiny_folder, rendering, path
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with (
        recorder_for(engine, tmp_path, FailsLater(rendering)) as recorder,
        serving(recorder),
        talking(recorder) as talker,
    ):
        history = [{"role": "user", "content": "x"}]
        payload = {"model": "m", "max_tokens": 9}
        for _ in range(2):
            answer = await talker.client.post(f"/v1/{path}", json={**payload, "messages": history, "input": history})
            history = [*history, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
        recording = await recorder.close("r1")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
    assert "a bug in the bridge" in answer.json()["error"]["message"]
    assert len(recording.calls) == 1
    assert "a bug in the bridge" in recording.broken[0]


async def test_a_bug_of_ours_under_a_count_of_tokens_is_told_in_the_sdks_own_shape(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    tool = {"name": "bash", "input_schema": {"type": "object"}}
    async with recorder_for(engine, tmp_path, FailsLater(rendering)) as recorder, serving(recorder):
        endpoint = recorder.open("r1", sampling=Sampling(), budget=PLENTY)
        asked = anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key)
        message = {"role": "user", "content": "x"}
        with pytest.raises(anthropic.InternalServerError) as told:
            await asked.messages.count_tokens(model="m", messages=[message], tools=[tool] * 3)
        assert (await asked.messages.count_tokens(model="m", messages=[message], tools=[tool])).input_tokens > 0
    assert told.value.body["error"]["type"] == "api_error"
    assert "ZeroDivisionError" in told.value.body["error"]["message"]
    assert told.value.response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize(
    "headers", [{"x-session-id": "helper", "x-parent-session-id": "first"}, {"x-claude-code-agent-id": "helper"}]
)
async def test_an_agent_that_names_itself_in_headers_is_known_on_every_wire(
    tmp_path, tiny_folder, rendering, path, headers
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        asked = [{"role": "user", "content": "Find it."}]
        payload = {"model": "m", "max_tokens": 9, "messages": asked, "input": asked}
        assert (await talker.client.post(f"/v1/{path}", json=payload, headers=headers)).status_code == 200
        recording = await recorder.close("r1")
    assert [(c.agent_id, c.role) for c in recording.calls] == [("main", "main"), ("helper", "sub_agent")]


async def test_a_budget_of_tokens_ends_a_rollout(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "one two three" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder:
        few = SessionBudget(max_calls=10, max_tokens=4)
        async with talking(recorder, "few", budget=few) as talker:
            first = await talker.ask("a")
            assert len(rendering.text(engine.encode(first["content"]))) < len("one two three")
            refused = await talker.post([{"role": "user", "content": "b"}])
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "budget_exhausted")
        assert (await recorder.close("few")).budget_hit


async def test_a_closed_rollout_is_gone_for_its_harness(tmp_path, tiny_folder, rendering):
    async with on_loopback(tmp_path, tiny_folder, rendering, lambda r: LONG, token_s=0.05) as (
        recorder,
        engine,
        client,
    ):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=body()))
        await until(lambda: engine.requests)
        recording = await recorder.close("r1")
        assert (await asked).status_code == 503
        assert [c.state for c in recording.calls] == ["cancelled"]
        assert (await client.post("/v1/chat/completions", json=body())).status_code == 401
        assert engine.closed_sessions == ["r1.0"]
        with pytest.raises(ValueError, match="not open"):
            await recorder.close("r1")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
VALID = {
    "chat/completions": {
        **body(stream=True, stop=["x"], max_tokens=5, stream_options={"include_usage": True}),
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "y"},
        ],
    },
    "responses": {
        "model": "m",
        "instructions": "be brief",
        "stream": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c", "name": "bash", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "y"},
        ],
        "tools": [
            {"type": "function", "name": "bash", "parameters": {}},
            {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "patch"}]},
            {"type": "web_search"},
        ],
    },
    "messages": {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "stream": True,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "y"}]},
        ],
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    },
}
SECRET = "the other rollout's secret"


def paths_of(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths_of(child, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("wire", VALID)
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_malformed_body_gets_an_error_and_never_a_crash_or_anothers_words(
    tmp_path_factory, tiny_folder, rendering, wire, data
):
    where = data.draw(st.sampled_from(list(paths_of(VALID[wire]))))
    payload = replaced(VALID[wire], where, data.draw(JSON))

    async def run():
        engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
        folder = tmp_path_factory.mktemp("fuzz")
        async with (
            recorder_for(engine, folder, rendering) as recorder,
            talking(recorder, "other") as other,
            talking(recorder, "r1") as talker,
        ):
            await other.ask(SECRET)
            answer = await talker.client.post(f"/v1/{wire}", json=payload)
            counted = await talker.client.post("/v1/messages/count_tokens", json=payload)
            return answer, counted, await recorder.close("r1")

    answer, counted, recording = asyncio.run(run())
    assert answer.status_code in (200, 400)
    assert counted.status_code in (200, 400)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    assert SECRET not in answer.text
    assert len(recording.calls) == (answer.status_code == 200)
    assert all(c.state == "complete" for c in recording.calls)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
async def test_bytes_that_are_no_request_get_a_400(tmp_path, tiny_folder, rendering, raw):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        answer = await talker.client.post("/v1/chat/completions", content=raw)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_request"


async def test_a_tool_nested_to_the_interpreters_limit_is_refused_or_answered_and_the_next_call_served(
    tmp_path, tiny_folder, rendering
):
    # Python 3.11 parses these 900 levels and cannot write them again; 3.12 counts C's recursion apart and can do both
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    raw = b'{"messages": [{"role": "user", "content": "x"}], "tools": [%s]}'
    function, schema = b'{"function": {"name": "f", "p": %s}}' % deep, b'{"name": "f", "input_schema": %s}' % deep
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        for path, tool in (("chat/completions", function), ("messages/count_tokens", schema)):
            answer = await talker.client.post(f"/v1/{path}", content=raw % tool)
            assert answer.status_code in (200, 400)
            assert "too deeply" in answer.text or answer.status_code == 200
        await talker.ask("hello")


async def test_a_body_over_the_limit_gets_a_400(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering, max_body_bytes=2000) as recorder, talking(recorder) as talker:
        assert (await talker.post([{"role": "user", "content": "x" * 3000}])).status_code == 400


MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "bash", "arguments": ', '{"command": "ls"}}')
ODD = (*MARKERS, '"\\ud800"', "1e999", "NaN", "[" * 1200, "é", " ", "\n", '{"name": ["x"], "arguments": {}}', "word")


@settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck))
@given(pieces=st.lists(st.sampled_from(ODD), max_size=12), ids=st.lists(st.integers(0, 300), max_size=8))
def test_whatever_the_model_says_is_delivered_and_the_next_turn_goes_on(
    tmp_path_factory, tiny_folder, rendering, pieces, ids
):
    async def run(path, stream):
        said: list = []

        def script(request):
            said.append([*engine.encode("".join(pieces)), *ids, *engine.encode(STOP)])
            return said[-1]

        engine = ScriptedEngine(tiny_folder, script)
        folder = tmp_path_factory.mktemp("odd")
        async with (
            recorder_for(engine, folder, rendering) as recorder,
            talking(recorder, max_tokens=9000) as talker,
        ):
            payload = replaced(VALID[path], ("stream",), stream) | {"stop": None, "max_tokens": 9000}
            answer = await talker.client.post(f"/v1/{path}", json=payload)
            assert answer.status_code == 200, answer.text
            recording = await recorder.close("r1")
        (call,) = recording.calls
        assert (call.state, list(call.completion_ids)) == ("complete", said[0])

    for path in VALID:
        asyncio.run(run(path, True))
        asyncio.run(run(path, False))


@pytest.mark.slow
async def test_ten_thousand_calls_use_flat_memory(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    peaks = []
    async with recorder_for(engine, tmp_path, rendering) as recorder:
        for rollout in range(500):
            async with talking(recorder, f"r{rollout}") as talker:
                for _ in range(20):
                    await talker.ask("again " * 20)
                await recorder.close(f"r{rollout}")
            engine.requests.clear()
            engine.closed_sessions.clear()
            if rollout in (100, 499):
                gc.collect()
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[1] - peaks[0] < 8 * 1024, f"peak memory grew from {peaks[0]} to {peaks[1]} KiB"
