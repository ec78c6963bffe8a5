"""The real SDKs against the server on loopback, whole and streaming."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest
from polar_fakes import PLENTY, STOP, ScriptedEngine, in_turn, recorder_for

from environments.polar.base import SessionBudget
from environments.polar.server import serving
from infra.engines.base import EngineError, Sampling

TOOL = {
    "name": "bash",
    "description": "Run a shell command.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
FUNCTION = {"name": "bash", "description": "Run a shell command.", "parameters": TOOL["input_schema"]}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS = [{"type": "function", "strict": False, **FUNCTION}]
SCRIPT = (
    "<think>\nlook first\n</think>\n\nI look.\n<tool_call>\n" + '{"name": "bash", "arguments": {"command": "ls /"}}\n'
    "</tool_call>" + STOP
)


def two_turns():
    return in_turn(SCRIPT, '{"answer": "done"}' + STOP)


@pytest.fixture
async def served(tmp_path, tiny_folder, rendering):
    """Starts a server over a script; gives (recorder, endpoint)."""
    stack = []

    async def start(script, *, budget=PLENTY, max_tokens=400, **more):
        engine = ScriptedEngine(tiny_folder, script, **more)
        recording = recorder_for(engine, tmp_path, rendering)
        recorder = await recording.__aenter__()
        server = serving(recorder)
        await server.__aenter__()
        stack.extend([server, recording])
        return recorder, recorder.open("r1", sampling=Sampling(max_tokens=max_tokens), budget=budget)

    yield start
    for context in stack:
        await context.__aexit__(None, None, None)


def open_ai(endpoint, **more):
    return openai.AsyncOpenAI(base_url=f"{endpoint.base_url}/v1", api_key=endpoint.api_key, **more)


def claude(endpoint, **more):
    return anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key, **more)


def check_recording(recording):
    assert [c.cause for c in recording.calls] == ["root", "continuation"]
    (chain,) = recording.chains
    assert [s.trainable for s in chain.segments] == [False, True, False, True]
    assert [c.delivered_count for c in recording.calls] == [len(c.completion_ids) for c in recording.calls]
    (turn,) = recording.turns
    assert (turn.action, turn.thought, turn.observation) == ("ls /", "look first", "bin etc")


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_chat_completions(served, stream):
    recorder, endpoint = await served(two_turns())
    client = open_ai(endpoint)
    messages = [{"role": "system", "content": "Mend it."}, {"role": "user", "content": "Go."}]

    async def ask():
        if not stream:
            done = await client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS)
            return done, done.usage
        async with client.chat.completions.stream(
            model="policy", messages=messages, tools=CHAT_TOOLS, stream_options={"include_usage": True}
        ) as events:
            async for _ in events:
                pass
            done = await events.get_final_completion()
            return done, done.usage

    done, usage = await ask()
    message = done.choices[0].message
    assert (message.content, done.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert message.tool_calls[0].function.name == "bash"
    assert json.loads(message.tool_calls[0].function.arguments) == {"command": "ls /"}
    assert usage.completion_tokens > 10
    messages.append(message.to_dict())
    messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "bin etc"})
    done, usage = await ask()
    assert done.choices[0].message.content == '{"answer": "done"}'
    assert done.choices[0].finish_reason == "stop"
    check_recording(await recorder.close("r1"))


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses(served, stream):
    recorder, endpoint = await served(two_turns())
    client = open_ai(endpoint)
    items: list = [{"role": "user", "content": "Go."}]

    async def ask():
        if not stream:
            return await client.responses.create(
                model="policy", instructions="Mend it.", input=items, tools=RESPONSE_TOOLS
            )
        async with client.responses.stream(
            model="policy", instructions="Mend it.", input=items, tools=RESPONSE_TOOLS
        ) as events:
            kinds = [event.type async for event in events]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            return await events.get_final_response()

    done = await ask()
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call"]
    assert done.output_text == "I look."
    assert done.usage.output_tokens > 10
    items += [item.to_dict() for item in done.output]
    items.append({"type": "function_call_output", "call_id": done.output[2].call_id, "output": "bin etc"})
    done = await ask()
    assert (done.output_text, done.status) == ('{"answer": "done"}', "completed")
    check_recording(await recorder.close("r1"))


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropic_messages(served, stream):
    recorder, endpoint = await served(two_turns())
    client = claude(endpoint)
    system = [{"type": "text", "text": "Mend it.", "cache_control": {"type": "ephemeral"}}]
    messages: list = [{"role": "user", "content": "Go."}]

    async def ask():
        asked = {"model": "policy", "max_tokens": 300, "system": system, "messages": messages, "tools": [TOOL]}
        if not stream:
            return await client.messages.create(**asked)
        async with client.messages.stream(**asked) as events:
            async for _ in events:
                pass
            return await events.get_final_message()

    done = await ask()
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use"]
    assert (done.content[1].text, done.content[2].input) == ("I look.", {"command": "ls /"})
    assert (done.stop_reason, done.usage.input_tokens > 100) == ("tool_use", True)
    messages.append({"role": "assistant", "content": [block.to_dict() for block in done.content]})
    result = {"type": "tool_result", "tool_use_id": done.content[2].id, "content": "bin etc"}
    messages.append({"role": "user", "content": [result]})
    done = await ask()
    assert (done.content[0].text, done.stop_reason) == ('{"answer": "done"}', "end_turn")
    check_recording(await recorder.close("r1"))


async def test_counting_and_listing_are_answered_and_not_recorded(served):
    recorder, endpoint = await served(two_turns())
    counted = await claude(endpoint).messages.count_tokens(
        model="any", messages=[{"role": "user", "content": "Go."}], tools=[TOOL]
    )
    done = await claude(endpoint).messages.create(
        model="any", max_tokens=300, messages=[{"role": "user", "content": "Go."}], tools=[TOOL]
    )
    assert counted.input_tokens == done.usage.input_tokens
    assert [m.id async for m in open_ai(endpoint).models.list()] == ["policy"]
    assert [m.id async for m in claude(endpoint).models.list()] == ["policy"]
    assert (await open_ai(endpoint).models.retrieve("gpt-x")).id == "gpt-x"
    assert len((await recorder.close("r1")).calls) == 1


async def test_a_wrong_key_is_refused_in_each_sdks_own_error(served):
    _, endpoint = await served(two_turns())
    other = openai.AsyncOpenAI(base_url=f"{endpoint.base_url}/v1", api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        await other.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.AuthenticationError):
        await other.models.list()
    lost = anthropic.AsyncAnthropic(base_url=endpoint.base_url.replace("r1", "r2"), api_key=endpoint.api_key)
    with pytest.raises(anthropic.AuthenticationError):
        await lost.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.AuthenticationError) as listing:
        await lost.models.list()
    with pytest.raises(anthropic.NotFoundError) as nowhere:
        await claude(endpoint).get("/v1/nowhere", cast_to=object)
    for told in (listing, nowhere):
        assert (told.value.body["type"], "message" in told.value.body["error"]) == ("error", True)


async def test_a_spent_budget_is_refused_once_and_says_so_in_each_sdks_own_error(served):
    recorder, endpoint = await served(lambda r: "ok" + STOP, budget=SessionBudget(max_calls=1, max_tokens=1000))
    await open_ai(endpoint).chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.PermissionDeniedError) as chat:
        await open_ai(endpoint).chat.completions.create(model="m", messages=[{"role": "user", "content": "y"}])
    assert chat.value.code == "budget_exhausted"
    with pytest.raises(openai.PermissionDeniedError) as responses:
        await open_ai(endpoint).responses.create(model="m", input="z")
    assert responses.value.code == "budget_exhausted"
    with pytest.raises(anthropic.PermissionDeniedError) as messages:
        await claude(endpoint).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "w"}], stream=True
        )
    assert messages.value.body["error"]["code"] == "budget_exhausted"
    recording = await recorder.close("r1")
    assert recording.budget_hit
    assert len(recording.calls) == 1


async def test_a_prompt_that_is_too_long_is_said_in_the_words_that_harnesses_look_for(served):
    _, endpoint = await served(two_turns(), max_context=50)
    with pytest.raises(openai.BadRequestError) as chat:
        await open_ai(endpoint).chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], tools=CHAT_TOOLS
        )
    assert chat.value.code == "context_length_exceeded"
    assert "maximum context length" in str(chat.value)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await claude(endpoint).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}], tools=[TOOL]
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_fails_once_is_made_good_by_the_sdks_own_retry(served, stream):
    recorder, endpoint = await served(in_turn(EngineError("the device fell off"), "ok" + STOP))
    client = open_ai(endpoint, max_retries=2)
    done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=stream)
    if stream:
        text = "".join([c.choices[0].delta.content or "" async for c in done if c.choices])
    else:
        text = done.choices[0].message.content
    assert text == "ok"
    recording = await recorder.close("r1")
    assert [(c.state, c.cause) for c in recording.calls] == [("broken", "root"), ("complete", "retry")]
    assert recording.broken == ()
    assert [c.fork_cause for c in recording.chains] == ["root"]


async def test_an_engine_that_keeps_failing_leaves_a_broken_call(served):
    recorder, endpoint = await served(lambda r: EngineError("the device fell off"))
    with pytest.raises(openai.InternalServerError, match="the device fell off"):
        await open_ai(endpoint, max_retries=0).responses.create(model="m", input="x", stream=True)
    with pytest.raises(anthropic.InternalServerError, match="the device fell off"):
        await claude(endpoint, max_retries=0).messages.create(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "x"}]
        )
    recording = await recorder.close("r1")
    assert len(recording.broken) == 2
    assert recording.chains == ()


async def test_text_arrives_while_the_engine_still_speaks(served):
    _, endpoint = await served(lambda r: "one two three four five six" + STOP, token_s=0.02)
    seen = []
    stream = await open_ai(endpoint).chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}], stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            seen.append(chunk.choices[0].delta.content)
    assert "".join(seen) == "one two three four five six"
    assert len(seen) >= 6


async def test_a_stop_string_ends_the_answer_and_the_generation(served):
    recorder, endpoint = await served(lambda r: "one two STOP three four" + STOP)
    done = await claude(endpoint).messages.create(
        model="m", max_tokens=99, stop_sequences=["STOP"], messages=[{"role": "user", "content": "x"}]
    )
    assert (done.content[0].text, done.stop_reason, done.stop_sequence) == ("one two", "stop_sequence", "STOP")
    stream = await open_ai(endpoint).chat.completions.create(
        model="m", stop="STOP", messages=[{"role": "user", "content": "y"}], stream=True
    )
    assert "".join([c.choices[0].delta.content or "" async for c in stream if c.choices]) == "one two"
    recording = await recorder.close("r1")
    for call in recording.calls:
        assert recorder.rendering.text(call.completion_ids) == "one two STOP"


async def test_probes_and_websockets_are_answered(served):
    _, endpoint = await served(two_turns())
    async with httpx.AsyncClient() as client:
        root = endpoint.base_url.rsplit("/r/", 1)[0]
        assert (await client.head(f"{root}/")).status_code == 200
        assert (await client.head(endpoint.base_url)).status_code == 200
        assert (await client.get(f"{endpoint.base_url}/api/hello")).status_code == 200
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        answer = await client.get(f"{endpoint.base_url}/v1/responses", headers=upgrade)
        assert answer.status_code == 426
        lost = await client.post(f"{endpoint.base_url}/v1/embeddings", json={})
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")


async def test_a_unix_socket_serves_the_same(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    path = tmp_path / "polar.sock"
    async with recorder_for(engine, tmp_path / "log", rendering) as recorder:
        async with serving(recorder, unix_socket=path):
            endpoint = recorder.open("r1", sampling=Sampling(), budget=PLENTY)
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url=endpoint.base_url) as client:
                answer = await client.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": "x"}]},
                    headers={"x-api-key": endpoint.api_key},
                )
        assert answer.json()["choices"][0]["message"]["content"] == "ok"
        assert not path.exists()
