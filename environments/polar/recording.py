"""Log entries to calls: the one way from what was written to what was recorded, live or after a crash."""

from __future__ import annotations

from collections.abc import Iterable

from environments.polar.base import Recording
from environments.polar.chains import build_chains
from environments.polar.follow_ups import find_follow_ups
from environments.polar.logged import LoggedCall, LoggedRollout
from environments.polar.roles import Standing, settle
from environments.polar.turns import Said, build_turns
from environments.types import CallRecord
from infra.engines.base import Sampling

UNNUMBERED_GAP = "a record of the log is missing"


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
    """Calls that broke and that no retry made good; why a last request was refused; a word for any missing record."""
    mended: set[str] = set()
    for call in reversed(rollout.calls.values()):
        good = call.state == "complete" or call.call_id in mended
        if good and call.start["cause"] == "retry" and call.start["related"] is not None:
            mended.add(call.start["related"])
    broken = [c.call_id for c in rollout.calls.values() if c.state == "broken" and c.call_id not in mended]
    refused = rollout.closed.get("refused") if rollout.closed else None
    return (*broken, *([refused] if refused else []), *([UNNUMBERED_GAP] if rollout.gap else []))


def _said(rollout: LoggedRollout, records: Iterable[CallRecord]) -> list[Said]:
    """The complete calls of working agents, each with what later calls brought in answer to it."""
    follow_ups = find_follow_ups(rollout.calls)
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
        outcomes={c.call_id: c.end["parse"] for c in rollout.calls.values() if c.end and c.state == "complete"},
        broken=_lost(rollout),
        budget_hit=bool(rollout.closed and rollout.closed["budget_hit"]),
    )
