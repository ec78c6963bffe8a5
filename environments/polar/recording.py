"""Log entries to calls: the one way from what was written to what was recorded, live or after a crash."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.polar.base import Recording
from environments.polar.chains import build_chains
from environments.polar.log_format import Entry
from environments.polar.roles import Standing, settle
from environments.polar.turns import Said, build_turns
from environments.types import CallRecord, CallState
from infra.engines.base import Sampling

UNNUMBERED_GAP = "a record of the log is missing"


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


def _record(call: LoggedCall, standing: Standing) -> CallRecord:
    start, end = call.start, call.end
    sampling = {**start["sampling"], "stop_token_ids": tuple(start["sampling"]["stop_token_ids"])}
    return CallRecord(
        call_id=call.call_id,
        rollout_id=start["rollout"],
        agent_id=standing.agent_id,
        role=standing.role,
        parent_call_id=standing.parent,
        cause=standing.cause,
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
    """Calls that broke and that no retry made good; and a word for any missing record."""
    mended: set[str] = set()
    for call in reversed(rollout.calls.values()):
        good = call.state == "complete" or call.call_id in mended
        if good and call.start["cause"] == "retry" and call.start["related"] is not None:
            mended.add(call.start["related"])
    broken = [c.call_id for c in rollout.calls.values() if c.state == "broken" and c.call_id not in mended]
    return (*broken, *([UNNUMBERED_GAP] if rollout.gap else []))


def _said(rollout: LoggedRollout, records: Iterable[CallRecord]) -> list[Said]:
    """The complete calls of working agents, each with what later calls brought in answer to it."""
    follow_ups: dict[str, list[tuple[float, Any]]] = {}
    for call in rollout.calls.values():
        origin = call.start["parent"] or (call.start["related"] if call.start["cause"] != "retry" else None)
        if origin is not None:
            follow_ups.setdefault(origin, []).append((call.start["at"], call.start["messages"]))
    found = []
    for record in records:
        end = rollout.calls[record.call_id].end
        if record.state != "complete" or record.role == "side" or end is None:
            continue
        found.append(
            Said(
                call_id=record.call_id,
                agent_id=record.agent_id,
                answer=end["answer"],
                malformed=end["parse"] in ("malformed_tools", "open_reasoning"),
                ended_at=end["at"],
                follow_ups=follow_ups.get(record.call_id, []),
            )
        )
    return found


def build_recording(rollout: LoggedRollout) -> Recording:
    """Stitch a rollout's calls into chains. Pure: a replay of the log gives the same recording."""
    standings = settle([call.standing() for call in rollout.calls.values()])
    calls = tuple(_record(call, standings[call.call_id]) for call in rollout.calls.values())
    related = {c.call_id: c.start["related"] for c in rollout.calls.values()}
    return Recording(
        calls=calls,
        chains=build_chains(calls, related),
        turns=build_turns(_said(rollout, calls)),
        broken=_lost(rollout),
        budget_hit=bool(rollout.closed and rollout.closed["budget_hit"]),
    )
