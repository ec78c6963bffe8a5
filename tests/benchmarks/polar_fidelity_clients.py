"""Clients of `polar_fidelity.py`: each speaks one wire format over its vendor's SDK, well or ill mannered."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

from environments.harnesses.base import Endpoint
from environments.polar.base import Recording
from environments.polar.recorder import PolarRecorder
from infra.engines.base import GenerateRequest

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
FUNCTION = {"name": "bash", "description": "Run a shell command.", "parameters": SCHEMA}
SYSTEM = "Mend the service. cch=0a1b2c"
COMMANDS = ("cat config/app.json", "ls -la && grep -rn 'port' .", 'echo "é ✓" > run/out', "./check")
THOUGHTS = ("", "I will read the log first.", "The port is wrong.\n\nMend it; then check again.")


def scripted(request: GenerateRequest) -> str:
    """The next answer of a long task: thoughts, calls, at times two calls or a malformed one. A pure function."""
    rng = random.Random(f"{request.rollout_id}:{request.call_index}:{len(request.prompt_ids)}")
    thought = rng.choice(THOUGHTS)
    think = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    if rng.random() < 0.1:
        return f'{think}<tool_call>\n{{"name": "bash", "arguments": oops}}\n</tool_call>'
    calls = [json.dumps({"name": "bash", "arguments": {"command": rng.choice(COMMANDS)}}, ensure_ascii=False)]
    calls *= 1 + (rng.random() < 0.2)
    said = rng.choice(("", "Let me look.\n"))
    return think + said + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


class Received:
    """What a client got, as text: compared with what is on record."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, *texts: str | None) -> None:
        self.texts += [t for t in texts if t]


Driver = Callable[[Endpoint, Received, int], Awaitable[None]]


def _openai(endpoint: Endpoint) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{endpoint.base_url}/v1", api_key=endpoint.api_key)


async def _chat_turn(client: openai.AsyncOpenAI, messages: list[Any], got: Received, *, stream: bool) -> Any:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    if stream:
        async with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as events:
            async for _ in events:
                pass
            message = (await events.get_final_completion()).choices[0].message
    else:
        message = (
            (await client.chat.completions.create(model="policy", messages=messages, tools=tools)).choices[0].message
        )
    got.add(message.content, getattr(message, "reasoning_content", None))
    got.add(*(json.loads(c.function.arguments)["command"] for c in message.tool_calls or ()))
    return message


def _chat_results(message: Any) -> list[dict[str, Any]]:
    results = [{"role": "tool", "tool_call_id": c.id, "content": "exit 0"} for c in message.tool_calls or ()]
    return results or [{"role": "user", "content": "That was no call; try again."}]


def _chat_start() -> list[Any]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "The check fails."}]


async def chat(endpoint: Endpoint, got: Received, turns: int) -> None:
    """A faithful client of chat completions."""
    client, messages = _openai(endpoint), _chat_start()
    for _ in range(turns):
        message = await _chat_turn(client, messages, got, stream=False)
        messages += [message.to_dict(), *_chat_results(message)]


async def chat_unfaithful(endpoint: Endpoint, got: Received, turns: int) -> None:
    """Streams; re-serialises arguments, drops reasoning, renews ids and nonces, and flips strings to blocks."""
    client, messages, rng = _openai(endpoint), _chat_start(), random.Random(0)
    for _ in range(turns):
        message = await _chat_turn(client, messages, got, stream=True)
        echo: dict[str, Any] = {"refusal": None, "content": message.content, "role": "assistant"}
        calls = []
        for call in message.tool_calls or ():
            arguments = json.dumps(json.loads(call.function.arguments), indent=2)
            calls.append({"id": call.id, "type": "function", "function": {"name": "bash", "arguments": arguments}})
        messages += [echo | ({"tool_calls": calls} if calls else {}), *_chat_results(message)]
        nonce = f"Mend the service. cch={rng.getrandbits(24):06x}"
        messages[0] = {"role": "system", "content": [{"type": "text", "text": nonce}]}


async def responses(endpoint: Endpoint, got: Received, turns: int) -> None:
    """A streaming client of Responses that sends finished items back."""
    client = _openai(endpoint)
    items: list[Any] = [{"role": "user", "content": "The check fails."}]
    tools: Any = [{"type": "function", "strict": False, **FUNCTION}]
    for _ in range(turns):
        async with client.responses.stream(model="policy", instructions=SYSTEM, input=items, tools=tools) as events:
            async for _event in events:
                pass
            done = await events.get_final_response()
        got.add(done.output_text)
        items += [item.to_dict() for item in done.output]
        calls = [item for item in done.output if item.type == "function_call"]
        got.add(*(json.loads(c.arguments)["command"] for c in calls))
        items += [{"type": "function_call_output", "call_id": c.call_id, "output": "exit 0"} for c in calls]
        if not calls:
            items.append({"role": "user", "content": "That was no call; try again."})


async def messages_api(endpoint: Endpoint, got: Received, turns: int) -> None:
    """A streaming client of Messages whose cache mark moves from turn to turn."""
    client = anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key)
    history: list[Any] = [{"role": "user", "content": "The check fails."}]
    tools: Any = [{"name": "bash", "description": "Run a shell command.", "input_schema": SCHEMA}]
    mark = {"cache_control": {"type": "ephemeral"}}
    for _ in range(turns):
        async with client.messages.stream(
            model="policy", max_tokens=400, system=SYSTEM, messages=history, tools=tools
        ) as events:
            async for _event in events:
                pass
            done = await events.get_final_message()
        history[-1] = {**history[-1], "content": _unmarked(history[-1]["content"])}
        history.append({"role": "assistant", "content": [b.to_dict() for b in done.content]})
        uses = [b for b in done.content if b.type == "tool_use"]
        got.add(*(b.text for b in done.content if b.type == "text"), *(b.input["command"] for b in uses))
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": "exit 0", **mark} for b in uses]
        history.append({"role": "user", "content": results or "That was no call; try again."})


def _unmarked(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{k: v for k, v in block.items() if k != "cache_control"} for block in content]


async def compacting(endpoint: Endpoint, got: Received, turns: int) -> None:
    """Summarises its history in the middle, sends a helper off, asks for a title beside, and samples twice."""
    client, history = _openai(endpoint), _chat_start()
    title: Any = [{"role": "user", "content": "Give this session a title."}]
    helper: list[Any] = [{"role": "system", "content": "You explore."}, {"role": "user", "content": "Find the port."}]
    for turn in range(turns):
        if turn == turns // 2:
            history = [history[0], {"role": "user", "content": "Summary so far: the port was wrong. Go on."}]
        if turn == 1:
            await client.chat.completions.create(model="policy", messages=title)
            for _ in range(2):
                said = await _chat_turn(client, helper, got, stream=False)
                helper += [said.to_dict(), *_chat_results(said)]
        if turn == 2:
            await _chat_turn(client, history, got, stream=False)
        message = await _chat_turn(client, history, got, stream=turn % 2 == 0)
        history += [message.to_dict(), *_chat_results(message)]


DRIVERS: dict[str, Driver] = {
    "chat": chat,
    "chat_unfaithful": chat_unfaithful,
    "responses": responses,
    "messages": messages_api,
    "compacting": compacting,
}


def lost_texts(got: Received, recording: Recording, recorder: PolarRecorder) -> int:
    """Texts that the client received and that no recorded completion holds."""
    held = [recorder.rendering.text(c.completion_ids) for c in recording.calls]
    plain = [json.dumps(t, ensure_ascii=False)[1:-1] for t in got.texts]
    return sum(not any(a in text or b in text for text in held) for a, b in zip(got.texts, plain, strict=True))
