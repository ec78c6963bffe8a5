"""The deployment gap: what a sampled answer would have been worth under the prompt that production renders.

Training sees the sampled ids of earlier turns; a plain server renders the history anew from text. The gap is the
difference of each answer's log-probabilities under the two prompts, with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.polar.messages import Message, ToolCall, parse_arguments
from environments.polar.recording import LoggedCall, LoggedRollout
from environments.polar.rendering import Rendering
from infra.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One call: `differences[C]` in nats, sampled-context minus re-rendered-context; `same_prompt` if none was due."""

    call_id: str
    same_prompt: bool
    differences: tuple[float, ...]


def _message(plain: Mapping[str, Any]) -> Message:
    calls = (ToolCall(call_id=i, name=n, arguments=parse_arguments(a)) for i, n, a in plain["calls"])
    return Message(
        role=plain["role"],
        text=plain["text"],
        reasoning=plain["reasoning"],
        tool_calls=tuple(calls),
        tool_call_id=plain["tool_call_id"],
    )


def _line(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> list[LoggedCall]:
    """The call and its parents, oldest first."""
    line = [call]
    while line[-1].start["parent"] is not None:
        line.append(calls[line[-1].start["parent"]])
    return line[::-1]


def conversation_of(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> tuple[list[Message], list[Any]]:
    """The messages that the harness had sent at this call (answers as delivered), and its tools."""
    line = _line(call, calls)
    messages: list[Message] = []
    for step in line:
        messages += [_message(m) for m in step.start["messages"]]
        if step is not call and step.end is not None:
            messages.append(_message({"role": "assistant", "tool_call_id": "", **step.end["answer"]}))
    return messages, list(line[0].start["tools"])


def _prompt(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> list[int]:
    ids: list[int] = []
    for step in _line(call, calls):
        ids += step.tail_ids
        if step is not call:
            ids += step.ids
    return ids


async def _scored(engine: Engine, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
    logprobs = await engine.score([*prompt, *completion])
    return logprobs[len(logprobs) - len(completion) :]


def _complete(rollout: LoggedRollout) -> Iterator[LoggedCall]:
    return (call for call in rollout.calls.values() if call.state == "complete" and len(call.ids))


async def deployment_gap(rollout: LoggedRollout, rendering: Rendering, engine: Engine) -> tuple[Gap, ...]:
    """The gap of every complete call of a rollout; both sides scored by `engine`, so sampling plays no part."""
    gaps = []
    for call in _complete(rollout):
        messages, tools = conversation_of(call, rollout.calls)
        kept, plain = _prompt(call, rollout.calls), rendering.prompt(messages, tools)
        if kept == plain:
            gaps.append(Gap(call_id=call.call_id, same_prompt=True, differences=(0.0,) * len(call.ids)))
            continue
        ours = await _scored(engine, kept, call.ids)
        theirs = await _scored(engine, plain, call.ids)
        differences = tuple(a - b for a, b in zip(ours, theirs, strict=True))
        gaps.append(Gap(call_id=call.call_id, same_prompt=False, differences=differences))
    return tuple(gaps)
