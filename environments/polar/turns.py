"""Turns from the wire: what an external harness did, rebuilt from the tool results that it sent back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from environments.types import ErrorClass, Turn

# How shells' results say their exit code, in the words of the harnesses that have been seen.
EXIT_CODES = (
    re.compile(r"<returncode>\s*(-?\d+)\s*</returncode>"),
    re.compile(r"^\s*(?:Error: )?Exit code:? (-?\d+)\b", re.IGNORECASE | re.MULTILINE),
    re.compile(r"\bProcess exited with code (-?\d+)"),
    re.compile(r"^\[exit (-?\d+)\]\s*$", re.MULTILINE),
    re.compile(r'"exit_code"\s*:\s*(-?\d+)'),
)
COMMAND_KEYS = ("command", "cmd", "input", "script")
_FENCED = re.compile(r"```(?:[\w-]*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A finished call: its answer, and the messages that each later call brought in."""

    call_id: str
    agent_id: str
    answer: Mapping[str, Any]
    malformed: bool
    ended_at: float
    follow_ups: Sequence[tuple[float, Sequence[Mapping[str, Any]]]]


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


def exit_code_of(observation: str) -> int | None:
    """The exit code that a tool's result speaks of; None where it names none."""
    for pattern in EXIT_CODES:
        found = pattern.search(observation)
        if found is not None:
            return int(found.group(1))
    return None


def _results(said: Said) -> Mapping[str, tuple[float, str]]:
    """Each tool call's result: by id where the harness kept it, else by its place among the results."""
    wanted = [call[0] for call in said.answer["calls"]]
    for at, messages in said.follow_ups:
        tools = [m for m in messages if m["role"] == "tool"]
        named = {m["tool_call_id"]: (at, m["text"]) for m in tools if m["tool_call_id"] in wanted}
        if named:
            return named
        if tools:
            return {want: (at, m["text"]) for want, m in zip(wanted, tools, strict=False)}
    return {}


def _reply(said: Said) -> tuple[float, str] | None:
    """What the harness answered to a message without tool calls; None when that message was the last."""
    for at, messages in said.follow_ups:
        texts = [m["text"] for m in messages if m["role"] in ("user", "tool")]
        if texts:
            return at, "\n".join(texts)
    return None


def _text_action(text: str) -> str:
    fenced = _FENCED.findall(text)
    return str(fenced[0]).strip() if len(fenced) == 1 else text


def _turn(index: int, said: Said, tool_call_id: str, action: str, result: tuple[float, str], first: bool) -> Turn:
    at, observation = result
    error: ErrorClass | None = "parse" if said.malformed and not tool_call_id else None
    return Turn(
        index=index,
        call_id=said.call_id,
        tool_call_id=tool_call_id,
        agent_id=said.agent_id,
        source="wire",
        thought=said.answer["reasoning"] if first else "",
        action=action,
        observation=observation,
        exit_code=exit_code_of(observation),
        error_class=error,
        duration_s=max(0.0, at - said.ended_at),
    )


def _of_call(said: Said, index: int) -> Iterator[Turn]:
    calls = said.answer["calls"]
    if not calls:
        reply = _reply(said)
        if reply is not None:
            yield _turn(index, said, "", _text_action(said.answer["text"]), reply, True)
        return
    results = _results(said)
    for number, (call_id, name, arguments) in enumerate(calls):
        if call_id in results:
            yield _turn(index + number, said, call_id, command_of(name, arguments), results[call_id], not number)


def build_turns(calls: Sequence[Said]) -> tuple[Turn, ...]:
    """Turns in order of the calls that asked for them. A call whose result never came gives none.

    `error_class` is 'parse' for a malformed action and None otherwise: what counts as an error is the suite's word.
    """
    turns: list[Turn] = []
    for said in calls:
        for turn in _of_call(said, len(turns)):
            turns.append(turn)
    return tuple(turns)
