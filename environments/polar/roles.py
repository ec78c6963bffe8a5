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
    for rule in (_helper_beside_the_line, _second_turn, _title_before_the_work, _one_shot_beside_the_work):
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


def _second_turn(calls: Sequence[Standing]) -> dict[str, Standing]:
    """An agent that was taken for a side call until it got a second turn was at work from the first."""
    later = {c.agent_id: c.role for c in calls if c.role != "side"}
    changed: dict[str, Standing] = {}
    for call in calls:
        role: Role = later.get(call.agent_id, "side")
        if role == "side" or call.named or not call.agent_id.startswith("side-"):
            continue
        cause: ForkCause = call.cause if call.cause != "side" else "root" if role == "main" else "sub_agent"
        agent_id = MAIN if role == "main" else call.agent_id.replace("side", role, 1)
        changed[call.call_id] = replace(call, agent_id=agent_id, role=role, cause=cause)
    return changed


def _one_shot_beside_the_work(calls: Sequence[Standing]) -> dict[str, Standing]:
    """Beside a main agent with tools, an agent without tools and without a second turn did no work that can be seen.

    Beside a main agent that has none itself (a text protocol) a call without tools is like any other.
    """
    if not any(c.role == "main" and c.has_tools for c in calls):
        return {}
    working = {c.agent_id for c in calls if c.has_tools or c.named or c.parent is not None}
    return {
        c.call_id: replace(
            c,
            agent_id=c.agent_id.replace("sub_agent", "side", 1),
            role="side",
            cause="side" if c.cause in ("sub_agent", "compacted") else c.cause,
        )
        for c in calls
        if c.role == "sub_agent" and c.agent_id not in working
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
