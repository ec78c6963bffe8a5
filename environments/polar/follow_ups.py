"""What came back after each call: the messages that later calls brought in answer to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from environments.polar.logged import LoggedCall, conversation_of, message_of
from environments.polar.messages import extend_digest, message_digest
from environments.polar.turns import FollowUp


def find_follow_ups(calls: Mapping[str, LoggedCall]) -> Mapping[str, Sequence[FollowUp]]:
    """Follow-ups by call id, in order of start. `calls` in order of start too."""
    found: dict[str, list[FollowUp]] = {}
    asked: dict[bytes, str] = {}
    for call in calls.values():
        start = call.start
        parent, messages = start["parent"], start["messages"]
        origin = parent or (start["related"] if start["cause"] != "retry" else None)
        if origin is not None and origin in calls:
            new = messages if parent is not None else _beyond(calls[origin], messages, calls)
            found.setdefault(origin, []).append(FollowUp(at=start["at"], messages=new, answer_dropped=False))
        states = list(_states(parent, messages))
        dropped = _dropped(messages, states, asked)
        if dropped is not None:
            earlier, complaint = dropped
            found.setdefault(earlier, []).append(FollowUp(at=start["at"], messages=complaint, answer_dropped=True))
        asked[states[-1]] = call.call_id
    return found


def _beyond(origin: LoggedCall, messages: Sequence[Any], calls: Mapping[str, LoggedCall]) -> Sequence[Any]:
    """The messages of a fork after what it has in common with the request that `origin` answered."""
    asked = (message_digest(m) for m in conversation_of(origin, calls)[0])
    now = (message_digest(message_of(m)) for m in messages)
    shared = 0
    for before, after in zip(asked, now, strict=False):
        if before != after:
            break
        shared += 1
    return messages[shared:]


def _states(parent: str | None, messages: Sequence[Any]) -> Iterator[bytes]:
    """Digests of what was asked after `parent`: of none of `messages`, of the first, and so on to all."""
    state = (parent or "").encode()
    yield state
    for message in messages:
        state = extend_digest(state, message_of(message))
        yield state


def _dropped(
    messages: Sequence[Any], states: Sequence[bytes], asked: Mapping[bytes, str]
) -> tuple[str, Sequence[Any]] | None:
    """The earlier call that asked the same but for the user's words at the end: its answer is gone, they say why."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] != "user":
            return None
        earlier = asked.get(states[at])
        if earlier is not None:
            return earlier, messages[at:]
    return None
