"""Log entries to calls: the one way from what was written to what was recorded, live or after a crash."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.polar.base import Recording
from environments.polar.chains import build_chains
from environments.polar.log import Entry
from environments.types import CallRecord, CallState
from infra.engines.base import Sampling


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
        return str(self.start["call"])

    @property
    def state(self) -> CallState:
        """As logged; broken when the end is missing or counts other tokens than were logged."""
        if self.end is None or self.end["tokens"] != len(self.ids):
            return "broken"
        state: CallState = self.end["state"]
        return state


@dataclass(slots=True)
class LoggedRollout:
    """One rollout as its log records tell it."""

    rollout_id: str
    calls: dict[str, LoggedCall] = field(default_factory=dict)
    closed: Mapping[str, Any] | None = None
    missing: list[str] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Take in the next record of this rollout."""
        head, kind = entry.head, entry.head["kind"]
        if kind == "start":
            self.calls[head["call"]] = LoggedCall(start=head, tail_ids=entry.arrays[0])
        elif kind == "close":
            self.closed = head
        elif kind in ("delta", "end", "delivered"):
            call = self.calls.get(head["call"])
            if call is None:
                self.missing.append(head["call"])
                return
            _take(call, entry)


def _take(call: LoggedCall, entry: Entry) -> None:
    head = entry.head
    if head["kind"] == "delivered":
        call.delivered = max(call.delivered, head["tokens"])
        return
    call.ids += entry.arrays[0]
    call.logprobs += entry.arrays[1]
    call.version = head["version"]
    if head["kind"] == "end":
        call.end = head


def read_rollouts(entries: Iterable[Entry]) -> dict[str, LoggedRollout]:
    """Sort entries by rollout, in the order in which the rollouts first appear."""
    rollouts: dict[str, LoggedRollout] = {}
    for entry in entries:
        name = entry.head.get("rollout")
        if name is not None:
            rollouts.setdefault(name, LoggedRollout(name)).add(entry)
    return rollouts


def _record(call: LoggedCall) -> CallRecord:
    start, end = call.start, call.end
    sampling = {**start["sampling"], "stop_token_ids": tuple(start["sampling"]["stop_token_ids"])}
    return CallRecord(
        call_id=call.call_id,
        rollout_id=start["rollout"],
        agent_id=start["agent"],
        role=start["role"],
        parent_call_id=start["parent"],
        cause=start["cause"],
        wire=start["wire"],
        prompt_tail_ids=tuple(call.tail_ids),
        completion_ids=tuple(call.ids),
        completion_logprobs=tuple(call.logprobs),
        delivered_count=min(call.delivered, len(call.ids)),
        state=call.state,
        policy_version=call.version,
        sampling=Sampling(**sampling),
        finish_reason=end["finish"] if end is not None else "abort",
        tokenizer_digest=start["tokenizer"],
        started_at=start["at"],
        latency_s=max(0.0, end["at"] - start["at"]) if end is not None else 0.0,
    )


def _lost(rollout: LoggedRollout) -> tuple[str, ...]:
    """Calls that broke and that no retry made good, and calls whose start is missing."""
    mended: set[str] = set()
    for call in reversed(rollout.calls.values()):
        good = call.state == "complete" or call.call_id in mended
        if good and call.start["cause"] == "retry" and call.start["related"] is not None:
            mended.add(call.start["related"])
    broken = [c.call_id for c in rollout.calls.values() if c.state == "broken" and c.call_id not in mended]
    return tuple(dict.fromkeys([*broken, *rollout.missing]))


def build_recording(rollout: LoggedRollout) -> Recording:
    """Stitch a rollout's calls into chains. Pure: a replay of the log gives the same recording."""
    calls = tuple(_record(call) for call in rollout.calls.values())
    related = {c.call_id: c.start["related"] for c in rollout.calls.values()}
    return Recording(
        calls=calls,
        chains=build_chains(calls, related),
        turns=(),
        broken=_lost(rollout),
        budget_hit=bool(rollout.closed and rollout.closed["budget_hit"]),
    )
