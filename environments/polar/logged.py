"""What the log tells of a rollout: its calls, each with its records, and the conversation that each answered."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.polar.log_format import Entry
from environments.polar.messages import Message, ToolCall, parse_arguments
from environments.polar.roles import Standing
from environments.types import CallState


@dataclass(slots=True, kw_only=True)
class LoggedCall:
    """One call as its log records tell it. No `end`: the proxy died under it."""

    start: Mapping[str, Any]
    tail_ids: array[int]
    ids: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    version: int = -1
    delivered: int = 0
    end: Mapping[str, Any] | None = None

    @property
    def call_id(self) -> str:
        """As the session named it."""
        return str(self.start["call"])

    @property
    def state(self) -> CallState:
        """As logged; broken when the end is missing, or where fewer tokens are on record than were sampled or sent."""
        if self.end is None or self.end["tokens"] != len(self.ids) or self.delivered > len(self.ids):
            return "broken"
        state: CallState = self.end["state"]
        return state

    def take(self, entry: Entry) -> None:
        """Take in a later record of this call."""
        head = entry.head
        if head["kind"] == "delivered":
            self.delivered = max(self.delivered, head["tokens"])
            return
        self.ids += entry.arrays[0]
        self.logprobs += entry.arrays[1]
        self.version = head["version"]
        if head["kind"] == "end":
            self.end = head

    def standing(self) -> Standing:
        """What was thought of its agent when it came."""
        start = self.start
        return Standing(
            call_id=self.call_id,
            agent_id=start["agent"],
            role=start["role"],
            cause=start["cause"],
            parent=start["parent"],
            has_tools=start["has_tools"],
            named=start["named"],
        )


@dataclass(slots=True)
class LoggedRollout:
    """One rollout as its log records tell it. `gap`: a record is missing, so the rollout is not whole."""

    rollout_id: str
    calls: dict[str, LoggedCall] = field(default_factory=dict)
    closed: Mapping[str, Any] | None = None
    next_seq: int = 0
    gap: bool = False

    def add(self, entry: Entry) -> None:
        """Take in the next record of this rollout."""
        head, kind = entry.head, entry.head["kind"]
        self.gap = self.gap or head["seq"] != self.next_seq
        self.next_seq = head["seq"] + 1
        if kind == "start":
            self.calls[head["call"]] = LoggedCall(start=head, tail_ids=entry.arrays[0])
        elif kind == "close":
            self.closed = head
        elif kind in ("delta", "end", "delivered") and head["call"] in self.calls:
            self.calls[head["call"]].take(entry)


def read_rollouts(entries: Iterable[Entry]) -> dict[str, LoggedRollout]:
    """Sort entries by rollout. A rollout that was opened again starts anew: the last opening counts."""
    rollouts: dict[str, LoggedRollout] = {}
    for entry in entries:
        name = entry.head.get("rollout")
        if name is None:
            continue
        if entry.head["kind"] == "open" or name not in rollouts:
            rollouts[name] = LoggedRollout(name)
        rollouts[name].add(entry)
    return rollouts


def message_of(plain: Mapping[str, Any]) -> Message:
    """A message as `calls.new_messages_plain` wrote it."""
    calls = (ToolCall(call_id=i, name=n, arguments=parse_arguments(a)) for i, n, a in plain["calls"])
    return Message(
        role=plain["role"],
        text=plain["text"],
        reasoning=plain["reasoning"],
        tool_calls=tuple(calls),
        tool_call_id=plain["tool_call_id"],
    )


def line_of(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> list[LoggedCall]:
    """The call and its parents, oldest first; it begins later where a damaged log has lost some."""
    line = [call]
    while (parent := calls.get(line[-1].start["parent"] or "")) is not None:
        line.append(parent)
    return line[::-1]


def conversation_of(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> tuple[list[Message], list[Any]]:
    """The messages that the harness had sent at this call (answers as delivered), and its tools."""
    line = line_of(call, calls)
    messages: list[Message] = []
    for step in line:
        messages += [message_of(m) for m in step.start["messages"]]
        if step is not call and step.end is not None:
            messages.append(message_of({"role": "assistant", "tool_call_id": "", **step.end["answer"]}))
    return messages, list(line[0].start["tools"] or ())
