"""Which earlier call a request goes on from, and if none, why not. One tree a session, held linear in tokens."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.polar.messages import Conversation, Message, same_reasoning
from environments.polar.side_calls import is_side_request
from environments.types import ForkCause, Role

MAIN = "main"
# A call index is line, resample number and ordinal side by side: 20 bits of ordinal, 8 of resample, then the line.
ORDINAL_BITS, RESAMPLE_BITS = 20, 8
# Whole copies of ids are kept for this many of the calls that ended last; others are put together when needed.
RECENT_NODES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a harness says of itself in headers: an agent of its own, if any."""

    agent_id: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A finished call: where it hangs, what it added. `prompt_ids`, all before its answer, for tips of lines only."""

    call_id: str
    parent: Node | None
    line: Line
    ordinal: int
    tail_ids: array[int]
    completion_ids: array[int]
    answer: Message
    prompt_ids: list[int] | None = None

    def prompt(self) -> list[int]:
        """The whole prompt that it answered."""
        if self.prompt_ids is not None:
            return self.prompt_ids
        backwards: list[Sequence[int]] = []
        node = self
        while node.prompt_ids is None and node.parent is not None:
            backwards += [node.tail_ids, node.parent.completion_ids]
            node = node.parent
        backwards.append(node.tail_ids if node.prompt_ids is None else node.prompt_ids)
        return [token for part in reversed(backwards) for token in part]


@dataclass(slots=True, kw_only=True, eq=False)
class Line:
    """The calls of one agent. `base` sets its call indexes apart from those of other lines."""

    agent_id: str
    role: Role
    root: bytes
    base: int
    has_tools: bool
    calls: int = 0
    ordinals: int = 0
    longest: int = 0
    last_call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a request stands. `parent` is the node it extends; `related` the call that a fork departs from."""

    line: Line
    parent: Node | None
    new: Sequence[Message]
    cause: ForkCause
    related: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a beginning of a conversation was seen first."""

    line: Line
    call_id: str


@dataclass(slots=True)
class Lineage:
    """The tree of one rollout. `_seen` knows beginnings under their root and, without it, whatever the root."""

    lines: list[Line] = field(default_factory=list)
    _by_state: dict[bytes, Node] = field(default_factory=dict)
    _seen: dict[bytes, Seen] = field(default_factory=dict)
    _recent: deque[Node] = field(default_factory=deque)

    def place(self, conversation: Conversation, root: bytes, tools: Sequence[Any], hints: Hints) -> Place:
        """Find the parent by meaning, else name the cause of the fork.

        A line that gets a second turn is at work, whatever its first request looked like.
        """
        parent, new = self._find_parent(conversation, root)
        if parent is not None:
            place = Place(line=parent.line, parent=parent, new=new, cause="continuation", related=parent.call_id)
        else:
            place = self._fork(conversation, root, tools, hints)
        if place.line.role == "side" and any(m.role == "assistant" for m in conversation.messages):
            place.line.role = self._working_role()
        return place

    def _working_role(self) -> Role:
        return "sub_agent" if any(x.role == "main" for x in self.lines) else "main"

    def _find_parent(self, conversation: Conversation, root: bytes) -> tuple[Node | None, Sequence[Message]]:
        messages, lead, chain = conversation.messages, conversation.lead, conversation.chain
        for end in range(len(messages), lead, -1):
            echoed = messages[end - 1]
            if echoed.role != "assistant":
                continue
            node = self._by_state.get(root + chain[end - lead])
            if node is not None and same_reasoning(node.answer.reasoning, echoed.reasoning):
                return node, messages[end:]
            return None, messages
        return None, messages

    def _fork(self, conversation: Conversation, root: bytes, tools: Sequence[Any], hints: Hints) -> Place:
        seen = self._shared(conversation, root, bool(tools))
        if seen is not None and not self._is_other_agent(hints, seen.line):
            shorter = len(conversation.chain) - 1 < seen.line.longest
            cause: ForkCause = "compacted" if shorter else "rewritten"
            return Place(line=seen.line, parent=None, new=conversation.messages, cause=cause, related=seen.call_id)
        line = next((x for x in self.lines if x.root == root and not self._is_other_agent(hints, x)), None)
        if line is not None and line.role != "side":
            return Place(line=line, parent=None, new=conversation.messages, cause="compacted", related=line.last_call)
        return self._new_line(conversation, root, tools, hints)

    @staticmethod
    def _is_other_agent(hints: Hints, line: Line) -> bool:
        return bool(hints.agent_id) and line.agent_id != hints.agent_id

    def _shared(self, conversation: Conversation, root: bytes, has_tools: bool) -> Seen | None:
        """Where the longest known beginning was seen: under the same root, or two messages deep under another.

        One message alone proves nothing under another root: a title call begins with the task's text too.
        """
        for depth in range(len(conversation.chain) - 1, 0, -1):
            digest = conversation.chain[depth]
            seen = self._seen.get(root + digest) or (self._seen.get(digest) if depth > 1 else None)
            if seen is not None and (seen.line.root == root or seen.line.has_tools == has_tools):
                return seen
        return None

    def _new_line(self, conversation: Conversation, root: bytes, tools: Sequence[Any], hints: Hints) -> Place:
        role = self._role(conversation, tools, hints)
        mark = zlib.crc32(root + conversation.chain[min(1, len(conversation.chain) - 1)])
        agent_id = hints.agent_id or (MAIN if role == "main" else f"{role}-{mark:08x}")
        line = Line(
            agent_id=agent_id,
            role=role,
            root=root,
            base=0 if role == "main" else self._free_base(1 + mark % 2046),
            has_tools=bool(tools),
        )
        cause: ForkCause = "root" if role == "main" else role
        return Place(line=line, parent=None, new=conversation.messages, cause=cause, related=None)

    def _free_base(self, base: int) -> int:
        """The first base from `base` on that no line has: two agents share neither randomness nor an engine session."""
        taken = {line.base for line in self.lines}
        while base in taken:
            base += 1
        return base

    def _role(self, conversation: Conversation, tools: Sequence[Any], hints: Hints) -> Role:
        if hints.agent_id:
            return "sub_agent"
        return "side" if not tools and is_side_request(conversation.messages) else self._working_role()

    def ordinal(self, place: Place) -> int:
        """The call's number within its line: a function of the conversation, not of the order of arrival."""
        return place.parent.ordinal + 1 if place.parent is not None else place.line.ordinals

    def note(self, place: Place, ordinal: int, conversation: Conversation, call_id: str) -> None:
        """Remember an admitted request, so that a later fork can say from where it departs."""
        line = place.line
        if line not in self.lines:
            self.lines.append(line)
        line.calls += 1
        line.ordinals = max(line.ordinals, ordinal + 1)
        line.last_call = call_id
        line.longest = max(line.longest, len(conversation.chain) - 1)
        for prefix in (line.root, b""):
            for digest in reversed(conversation.chain[1:]):
                if prefix + digest in self._seen:
                    break
                self._seen[prefix + digest] = Seen(line, call_id)

    def finish(self, node: Node, root: bytes, said: bytes) -> None:
        """Make a complete call known as a possible parent; few nodes keep a whole copy of their ids.

        `said` is the digest of the conversation with the call's answer.
        """
        self._by_state[root + said] = node
        for prefix in (root, b""):
            self._seen.setdefault(prefix + said, Seen(node.line, node.call_id))
        if node.parent is not None:
            node.parent.prompt_ids = None
        self._recent.append(node)
        if len(self._recent) > RECENT_NODES:
            self._recent.popleft().prompt_ids = None


def index_of(line: Line, ordinal: int) -> int:
    """The call index of a first sample."""
    return (line.base << (ORDINAL_BITS + RESAMPLE_BITS)) | (ordinal & ((1 << ORDINAL_BITS) - 1))


def next_resample(call_index: int) -> int:
    """The call index of the next sibling, drawn with other randomness for the same prompt."""
    number = (call_index >> ORDINAL_BITS) & ((1 << RESAMPLE_BITS) - 1)
    following = (number + 1) & ((1 << RESAMPLE_BITS) - 1)
    return call_index + ((following - number) << ORDINAL_BITS)
