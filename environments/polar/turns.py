"""Turns from the wire: what an external harness did, rebuilt from the tool results that it sent back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.polar.tool_results import exit_code_of
from environments.types import ErrorClass, Turn

COMMAND_KEYS = ("command", "cmd", "input", "script")
_FENCED = re.compile(r"```(?:[\w-]*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """What a later call brought in. `answer_dropped`: the harness took the answer out of its history, and said why."""

    at: float
    messages: Sequence[Mapping[str, Any]]
    answer_dropped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A finished call: its answer, and what each later call brought in."""

    call_id: str
    agent_id: str
    answer: Mapping[str, Any]
    malformed: bool
    ended_at: float
    follow_ups: Sequence[FollowUp]


@dataclass(frozen=True, slots=True)
class Observed:
    """What came back, and when."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Act:
    """One action of an answer."""

    action: str
    tool_call_id: str
    thought: str
    error: ErrorClass | None


def command_of(name: str, arguments: str) -> str:
    """The shell command in a tool call, or the call itself where it is no shell's."""
    try:
        given = json.loads(arguments)
    except (ValueError, RecursionError):
        return f"{name} {arguments}"
    for key in COMMAND_KEYS:
        value = given.get(key) if isinstance(given, dict) else None
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return str(value[-1]) if value[:1] == ["bash"] else " ".join(value)
    return f"{name} {arguments}"


def _results(said: Said) -> Mapping[str, Observed]:
    """Each tool call's result: by id where the harness kept it, else by its place among the results."""
    wanted = [call[0] for call in said.answer["calls"]]
    for follow_up in said.follow_ups:
        tools = [m for m in follow_up.messages if m["role"] == "tool"]
        named = {m["tool_call_id"]: Observed(follow_up.at, m["text"]) for m in tools if m["tool_call_id"] in wanted}
        if named:
            return named
        if tools:
            return {want: Observed(follow_up.at, m["text"]) for want, m in zip(wanted, tools, strict=False)}
    return {}


def _reply(follow_ups: Iterable[FollowUp]) -> Observed | None:
    """What the harness answered to a message without tool calls; None when that message was the last."""
    for follow_up in follow_ups:
        texts = [m["text"] for m in follow_up.messages if m["role"] in ("user", "tool")]
        if texts:
            return Observed(follow_up.at, "\n".join(texts))
    return None


def _text_action(text: str) -> str:
    fenced = _FENCED.findall(text)
    return str(fenced[0]).strip() if len(fenced) == 1 else text


def _written(answer: Mapping[str, Any]) -> str:
    """What the model wrote beside its reasoning, near enough: a refused call has no command."""
    return "\n".join(
        [*filter(None, [answer["text"]]), *(f"{name} {arguments}" for _, name, arguments in answer["calls"])]
    )


def _turn(said: Said, index: int, act: Act, observed: Observed) -> Turn:
    return Turn(
        index=index,
        call_id=said.call_id,
        tool_call_id=act.tool_call_id,
        agent_id=said.agent_id,
        source="wire",
        thought=act.thought,
        action=act.action,
        observation=observed.text,
        exit_code=exit_code_of(observed.text),
        error_class=act.error,
        duration_s=max(0.0, observed.at - said.ended_at),
    )


def _of_call(said: Said, index: int) -> Iterator[Turn]:
    calls, thought = said.answer["calls"], said.answer["reasoning"]
    dropped = _reply(f for f in said.follow_ups if f.answer_dropped)
    results = _results(said)
    if not calls:
        reply = _reply(said.follow_ups)
        error: ErrorClass | None = "parse" if said.malformed else None
        if reply is not None:
            yield _turn(said, index, Act(_text_action(said.answer["text"]), "", thought, error), reply)
    elif not results and dropped is not None:
        yield _turn(said, index, Act(_written(said.answer), "", thought, "parse"), dropped)
    for number, (call_id, name, arguments) in enumerate(calls):
        if call_id in results:
            act = Act(command_of(name, arguments), call_id, "" if number else thought, None)
            yield _turn(said, index + number, act, results[call_id])


def build_turns(calls: Sequence[Said]) -> tuple[Turn, ...]:
    """Turns in order of the calls that asked for them. A call whose result never came gives none.

    `error_class` is 'parse' for a malformed action and None otherwise: what else counts as an error is the suite's
    word (see `harnesses.error_classes`).
    """
    turns: list[Turn] = []
    for said in calls:
        for turn in _of_call(said, len(turns)):
            turns.append(turn)
    return tuple(turns)
