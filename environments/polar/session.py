"""One rollout's session: who may call, how much, and which call a request is."""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b

from environments.polar.calls import LiveCall, new_messages_plain
from environments.polar.errors import BudgetExhausted, TooLong, UnknownKey
from environments.polar.lineage import Lineage, Node, Place, index_of, next_resample
from environments.polar.log import RolloutLog
from environments.polar.messages import Conversation, Message, converse, extend_digest, tools_digest
from environments.polar.rendering import Rendering, Tools
from environments.polar.request import ModelRequest
from environments.polar.spending import Spending
from environments.types import ForkCause
from infra.engines.base import Sampling

RECENT = 4
SAMPLING_FIELDS = tuple(f.name for f in fields(Sampling))


@dataclass(frozen=True, slots=True)
class Model:
    """What a session must know of the model: how to render for it and how much it holds.

    `rerender`: serve as production would, each prompt rendered whole from what the harness sends.
    """

    rendering: Rendering
    max_context: int
    rerender: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request read by meaning. `body` is equal for a retry; `prompt` for the same prompt with other limits."""

    request: ModelRequest
    conversation: Conversation
    root: bytes
    prompt: bytes

    @property
    def body(self) -> Hashable:
        """The prompt with what the harness asks of its answer."""
        return self.prompt, self.request.max_tokens, self.request.stop, self.request.wire


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """The state of one open rollout. All methods are synchronous: one event loop makes each a transaction.

    `refused` says why the last request was turned away for a reason of ours, empty once a later one was admitted.
    """

    rollout_id: str
    key: str
    sampling: Sampling
    spending: Spending
    model: Model
    log: RolloutLog
    clock: Callable[[], float]
    lineage: Lineage = field(default_factory=Lineage)
    refused: str = ""
    closed: bool = False
    running: set[LiveCall] = field(default_factory=set)
    engine_sessions: set[str] = field(default_factory=set)
    _by_body: dict[Hashable, LiveCall] = field(default_factory=dict)
    _by_prompt: dict[bytes, LiveCall] = field(default_factory=dict)
    _tags: set[str] = field(default_factory=set)
    _recent: list[Conversation] = field(default_factory=list)
    _tools: tuple[Tools, bytes] = ((), tools_digest(()))

    def accepts(self, key: str) -> bool:
        """Whether this is the session's capability key (compared in constant time)."""
        return hmac.compare_digest(self.key.encode(), key.encode("utf-8", "surrogatepass"))

    def check_open(self) -> None:
        """Raise UnknownKey once the rollout is being closed: a body may arrive long after its key was looked at."""
        if self.closed:
            raise UnknownKey("this rollout is closed")

    def read(self, request: ModelRequest) -> Asked:
        """Read a request's messages by meaning. Raises UnknownKey, and BadBody through the wire's converter."""
        self.check_open()
        earlier = max(self._recent, key=lambda c: _head_equals(c, request), default=None)
        conversation = converse(request.items, request.convert, earlier)
        self._recent = [conversation, *(c for c in self._recent if c is not earlier)][:RECENT]
        opening = conversation.lead_digests + self._digest_of_tools(request)
        root = blake2b(opening, digest_size=16).digest()
        return Asked(request=request, conversation=conversation, root=root, prompt=root + conversation.chain[-1])

    def _digest_of_tools(self, request: ModelRequest) -> bytes:
        if request.tools != self._tools[0]:
            self._tools = (request.tools, tools_digest(request.tools))
        return self._tools[1]

    def count(self, request: ModelRequest) -> int:
        """The tokens of a prompt, rendered whole. Raises UnknownKey, BadBody."""
        self.check_open()
        conversation = converse(request.items, request.convert)
        return len(self.model.rendering.prompt(conversation.messages, request.tools))

    def earlier_answer(self, asked: Asked) -> LiveCall | None:
        """The call that this request repeats and whose answer did not wholly arrive: join or replay it."""
        twin = self._by_body.get(asked.body)
        if twin is None or twin.fully_delivered or twin.failed:
            return None
        return twin

    def begin(self, asked: Asked) -> LiveCall:
        """Admit a new call and log its start. Raises BudgetExhausted, Crowded, TooLong, LogFailed."""
        twin = self._by_body.get(asked.body) or self._by_prompt.get(asked.prompt)
        place = self._place(asked, twin)
        place, prompt_ids, tail_ids = self._render(asked, place)
        sampling = self._sampling(asked, place, len(prompt_ids))
        call = self._make(asked, place, twin, (prompt_ids, tail_ids), sampling)
        self._log_start(call, asked, tail_ids)
        self._admit(call, asked)
        return call

    def _admit(self, call: LiveCall, asked: Asked) -> None:
        """Take a call that is on record into the books: until now a refusal has left no trace."""
        self.lineage.note(call.place, call.ordinal, asked.conversation, call.call_id)
        self._tags.add(call.tag)
        self.engine_sessions.add(call.session_id)
        self.running.add(call)
        self.spending.begin(call.started_at)
        self._by_body[asked.body] = self._by_prompt[asked.prompt] = call

    def _place(self, asked: Asked, twin: LiveCall | None) -> Place:
        if twin is None:
            return self.lineage.place(asked.conversation, asked.root, asked.request.tools, asked.request.hints)
        cause: ForkCause = "retry" if twin.failed else "resample"
        return replace(twin.place, cause=cause, related=twin.call_id)

    def _render(self, asked: Asked, place: Place) -> tuple[Place, list[int], list[int]]:
        """The prompt's ids and the part that is new after the parent; a fork where no tail is provable."""
        rendering, tools = self.model.rendering, asked.request.tools
        if place.parent is not None and self.model.rerender:
            place = replace(place, parent=None, new=asked.conversation.messages, cause="template")
        elif place.parent is not None:
            before, said = place.parent.prompt(), list(place.parent.completion_ids)
            tail = self._tail(asked, before, said, place.new)
            if isinstance(tail, list):
                return place, [*before, *said, *tail], tail
            related = place.parent.call_id
            place = replace(place, parent=None, new=asked.conversation.messages, cause=tail, related=related)
        prompt_ids = rendering.prompt(asked.conversation.messages, tools)
        return place, prompt_ids, prompt_ids

    def _tail(self, asked: Asked, before: list[int], said: list[int], new: Sequence[Message]) -> list[int] | ForkCause:
        """The ids after the prompt `before` and its answer `said`; the cause of a fork where none are provable."""
        rendering, tools = self.model.rendering, asked.request.tools
        tail = rendering.tail(before, said, new, tools)
        if tail is not None:
            return tail
        messages = asked.conversation.messages
        history = messages[: len(messages) - len(new)]
        return rendering.tail_by_difference(history, new, tools, said)

    def _sampling(self, asked: Asked, place: Place, prompt_length: int) -> Sampling:
        room = self.model.max_context - prompt_length
        if room < 1:
            raise TooLong(
                f"the prompt has {prompt_length} tokens; this model's maximum context length is "
                f"{self.model.max_context} tokens. Shorten the conversation."
            )
        left = self.spending.grant(place.line, self.lineage.lines, self.running, self.clock())
        asked_tokens = asked.request.max_tokens or self.sampling.max_tokens
        stops = dict.fromkeys((*self.sampling.stop_token_ids, *self.model.rendering.stop_token_ids))
        return replace(
            self.sampling,
            max_tokens=min(asked_tokens, self.sampling.max_tokens, room, left),
            stop_token_ids=tuple(stops),
        )

    def _make(
        self,
        asked: Asked,
        place: Place,
        twin: LiveCall | None,
        rendered: tuple[list[int], list[int]],
        sampling: Sampling,
    ) -> LiveCall:
        prompt_ids, tail_ids = rendered
        line, index = place.line, self._index(place, twin)
        ordinal = twin.ordinal if twin is not None else self.lineage.ordinal(place)
        tag = self._tag(f"{line.base}_{ordinal}")
        call_id = f"{self.rollout_id}.{tag}"
        return LiveCall(
            call_id=call_id,
            tag=tag,
            rollout_id=self.rollout_id,
            session_id=f"{self.rollout_id}.{line.base}",
            wire=asked.request.wire,
            place=place,
            ordinal=ordinal,
            call_index=index,
            prompt_ids=prompt_ids,
            prompt_length=len(prompt_ids),
            tail_length=len(tail_ids),
            sampling=sampling,
            stops=asked.request.stop,
            tools=asked.request.tools,
            started_at=self.clock(),
            time_left_s=self.spending.time_left_s(self.clock()),
            streamed=asked.request.stream,
            log=self.log,
        )

    def _tag(self, name: str) -> str:
        """A name for the call that no other of this rollout has, by its place and not by its time."""
        tag, attempt = name, 0
        while tag in self._tags:
            attempt += 1
            tag = f"{name}_{attempt}"
        return tag

    def _index(self, place: Place, twin: LiveCall | None) -> int:
        """A retry has the randomness of what it repeats, a resample that of a sibling."""
        if twin is None:
            return index_of(place.line, self.lineage.ordinal(place))
        return twin.call_index if place.cause == "retry" else next_resample(twin.call_index)

    def _log_start(self, call: LiveCall, asked: Asked, tail_ids: list[int]) -> None:
        place = call.place
        head = {
            "call": call.call_id,
            "agent": place.line.agent_id,
            "role": place.line.role,
            "parent": place.parent.call_id if place.parent is not None else None,
            "cause": place.cause,
            "related": place.related,
            "wire": call.wire,
            "index": call.call_index,
            "sampling": {name: getattr(call.sampling, name) for name in SAMPLING_FIELDS},
            "tokenizer": self.model.rendering.digest,
            "at": call.started_at,
            "messages": new_messages_plain(place.new),
            "has_tools": bool(asked.request.tools),
            "tools": list(asked.request.tools) if place.parent is None else None,
            "named": bool(asked.request.hints.agent_id),
        }
        self.log.append("start", head, ids=[tail_ids])

    def finished(self, call: LiveCall, asked: Asked) -> None:
        """Take a call's end into the books; a complete one may now be a parent."""
        self.running.discard(call)
        self.spending.tokens += len(call.ids)
        self.spending.hit |= isinstance(call.error, BudgetExhausted)
        if call.state != "complete" or call.answer is None:
            return
        parent = call.place.parent
        node = Node(
            call_id=call.call_id,
            parent=parent,
            line=call.place.line,
            ordinal=call.ordinal,
            tail_ids=array("i", call.prompt_ids[call.prompt_length - call.tail_length :]),
            completion_ids=array("i", call.ids),
            answer=call.answer.message(),
            prompt_ids=call.prompt_ids,
        )
        self.lineage.finish(node, asked.root, extend_digest(asked.conversation.chain[-1], node.answer))


def _head_equals(conversation: Conversation, request: ModelRequest) -> int:
    """A cheap measure of which earlier request this one goes on from: equal ends beat equal beginnings."""
    items, old = request.items, conversation.items
    if not items or not old or items[0] != old[0]:
        return 0
    return 1 + (len(old) if len(items) >= len(old) and items[len(old) - 1] == old[-1] else 0)
