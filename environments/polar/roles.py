"""Who an agent was, seen from the end of a rollout: what could not be known when its first call came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from environments.polar.lineage import MAIN
from environments.types import ForkCause, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A call's agent, role and cause, with what it hangs on. `named`: the harness itself said which agent it is."""

    call_id: str
    agent_id: str
    role: Role
    cause: ForkCause
    parent: str | None
    has_tools: bool
    named: bool = False


def settle(calls: Sequence[Standing]) -> dict[str, Standing]:
    """The final standing of each call, given all in order of start. Pure."""
    settled = {c.call_id: c for c in calls}
    for rule in (_helper_beside_the_line, _title_before_the_work):
        settled.update(rule(list(settled.values())))
    return settled


def _roots(calls: Sequence[Standing]) -> Mapping[str, str]:
    roots: dict[str, str] = {}
    for call in calls:
        roots[call.call_id] = roots.get(call.parent or "", call.call_id)
    return roots


def _helper_beside_the_line(calls: Sequence[Standing]) -> dict[str, Standing]:
    """A 'compacted' start whose agent goes on with its old history later was no compaction but a helper."""
    roots = _roots(calls)
    order = {c.call_id: i for i, c in enumerate(calls)}
    helpers: set[str] = set()
    for call in calls:
        if call.cause != "compacted" or call.parent is not None:
            continue
        later = (c for c in calls[order[call.call_id] :] if c.agent_id == call.agent_id)
        if any(order[roots[c.call_id]] < order[call.call_id] for c in later):
            helpers.add(call.call_id)
    return {
        c.call_id: replace(
            c,
            agent_id=f"sub_agent-{order[roots[c.call_id]]}",
            role="sub_agent",
            cause="sub_agent" if c.call_id in helpers else c.cause,
        )
        for c in calls
        if roots[c.call_id] in helpers
    }


def _title_before_the_work(calls: Sequence[Standing]) -> dict[str, Standing]:
    """A lone call without tools that came before the agent with tools was a side call; that agent is the main one."""
    first = [c for c in calls if c.role == "main"]
    if len(first) != 1 or first[0].has_tools:
        return {}
    worker = next((c for c in calls if c.role == "sub_agent" and c.has_tools and not c.named), None)
    if worker is None:
        return {}
    changed = {first[0].call_id: replace(first[0], agent_id="side-first", role="side", cause="side")}
    for call in calls:
        if call.agent_id == worker.agent_id:
            cause = "root" if call.call_id == worker.call_id else call.cause
            changed[call.call_id] = replace(call, agent_id=MAIN, role="main", cause=cause)
    return changed
