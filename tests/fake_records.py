"""Records with plain values, for tests that care about a field or two: each takes what differs by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from environments.types import Chain, Segment, Trajectory, Turn, Usage


def rendered(*ids: int, call_id: str = "k") -> Segment:
    """Tokens that we or the harness wrote."""
    return Segment(ids=ids, logprobs=(), trainable=False, call_id=call_id, policy_version=-1)


def sampled(*ids: int, logprobs: Sequence[float] = (), call_id: str = "k", version: int = 0) -> Segment:
    """Tokens that the policy of `version` sampled, at -0.5 nats each when nothing else is said."""
    found = tuple(logprobs) or (-0.5,) * len(ids)
    return Segment(ids=ids, logprobs=found, trainable=True, call_id=call_id, policy_version=version)


def a_chain(rollout_id: str, *segments: Segment, **changes: Any) -> Chain:
    """The main chain of a rollout."""
    given: dict[str, Any] = {
        "chain_id": f"{rollout_id}-c",
        "rollout_id": rollout_id,
        "agent_id": "main",
        "role": "main",
        "parent_chain_id": None,
        "fork_cause": "root",
        "segments": segments,
    }
    return Chain(**{**given, **changes})


def a_turn(**changes: Any) -> Turn:
    """`ls` in the sandbox, which ended well and printed nothing."""
    given: dict[str, Any] = {
        "index": 0,
        "call_id": "k",
        "tool_call_id": "x",
        "agent_id": "main",
        "source": "sandbox",
        "thought": "",
        "action": "ls",
        "observation": "",
        "exit_code": 0,
        "error_class": None,
        "duration_s": 0.1,
    }
    return Turn(**{**given, **changes})


def a_rollout(rollout_id: str, **changes: Any) -> Trajectory:
    """The first of its group, completed on task 't' by policy 0; its usage counts its turns and its chains' tokens."""
    chains, turns = changes.get("chains", ()), changes.get("turns", ())
    rendered_tokens = sum(len(s.ids) for c in chains for s in c.segments if not s.trainable)
    version = changes.pop("version", 0)
    given: dict[str, Any] = {
        "rollout_id": rollout_id,
        "group_id": "g",
        "index": 0,
        "attempt": 0,
        "task_id": "t",
        "status": "completed",
        "fault": "",
        "chains": chains,
        "turns": turns,
        "final_payload": "{}",
        "usage": Usage(
            turns=len(turns),
            calls=len(turns),
            prompt_tokens=rendered_tokens,
            completion_tokens=sum(c.num_trainable for c in chains),
            wall_s=1.0,
            sandbox_s=0.1,
        ),
        "policy_versions": (version, version),
        "final_state_uri": "",
    }
    return Trajectory(**{**given, **changes})
