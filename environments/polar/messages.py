"""Messages by meaning: what a conversation says, whatever its wire format and however it is echoed.

Harnesses do not echo history faithfully. Digests here ignore what carries no meaning: key order, how arguments
are serialised, outer white space, ids, nulls, block lists against strings, cache marks, per-request nonces, and
reasoning (which is compared apart, see `same_reasoning`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Literal

MessageRole = Literal["system", "user", "assistant", "tool"]

# Values that a harness draws anew for each request inside a system text that otherwise stays.
NONCES = (
    re.compile(r"\bcch=[0-9A-Za-z]+"),  # Claude Code's billing line
    re.compile(r"\b(?:nonce|request[_-]id|trace[_-]id)\s*[=:]\s*[\w-]+", re.IGNORECASE),
    re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE),
)


_encode_plain = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call. `arguments` is the JSON object, or the raw text where the model wrote none."""

    call_id: str
    name: str
    arguments: Mapping[str, Any] | str

    def arguments_text(self) -> str:
        """The arguments as a JSON string (raw text stays as it is)."""
        if isinstance(self.arguments, str):
            return self.arguments
        return _encode_plain(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `reasoning` and `tool_calls` are an assistant's; `tool_call_id` is a tool result's."""

    role: MessageRole
    text: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


def parse_arguments(text: str) -> Mapping[str, Any] | str:
    """The JSON object that `text` is, or `text` itself where it is none."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def joined(first: Message, second: Message) -> Message:
    """Two assistant messages in a row are one turn (wire formats with items split it)."""
    glue = "\n" if first.text and second.text else ""
    rest = "\n" if first.reasoning and second.reasoning else ""
    return replace(
        first,
        text=first.text + glue + second.text,
        reasoning=first.reasoning + rest + second.reasoning,
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _plain_text(message: Message) -> str:
    text = message.text
    if message.role == "system":
        for nonce in NONCES:
            text = nonce.sub("", text)
    return text.strip()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


_encode_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _arguments_bytes(arguments: Mapping[str, Any] | str) -> bytes:
    if isinstance(arguments, str):
        return arguments.strip().encode("utf-8", "surrogatepass")
    return _encode_sorted(_without_nulls(arguments)).encode()


def _hash(parts: Sequence[bytes]) -> bytes:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def message_digest(message: Message) -> bytes:
    """16 bytes that are equal for messages of equal meaning; reasoning and ids are left out."""
    parts = [message.role.encode(), _plain_text(message).encode("utf-8", "surrogatepass")]
    for call in message.tool_calls:
        parts += [call.name.encode("utf-8", "surrogatepass"), _arguments_bytes(call.arguments)]
    return _hash(parts)


def extend_digest(prefix: bytes, message: Message) -> bytes:
    """The digest of a conversation with one more message: linear in the message, not in the conversation."""
    return _hash([prefix, message_digest(message)])


def tools_digest(tools: Sequence[Mapping[str, Any]]) -> bytes:
    """Equal for the same set of tools in any order, with cache marks and nulls ignored."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: clean(v) for k, v in value.items() if v is not None and k != "cache_control"}
        return [clean(v) for v in value] if isinstance(value, (list, tuple)) else value

    return _hash(sorted(json.dumps(clean(tool), sort_keys=True).encode() for tool in tools))


def same_reasoning(sampled: str, echoed: str) -> bool:
    """Whether an echo leaves the sampled reasoning as it was: dropped, or the same but for outer space."""
    return not echoed.strip() or echoed.strip() == sampled.strip()


@dataclass(slots=True)
class Conversation:
    """A request's messages with a digest after each, made so that the next request pays for its new part only.

    `items` are the wire's raw messages, `ends[k]` how many messages the first k+1 items gave. `lead` system
    messages open it and belong to the root, not to the chain: `lead_digests` are theirs, one after another.
    `chain[k]` is the digest of the k messages after.
    """

    items: Sequence[Any]
    ends: list[int] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    lead: int = 0
    lead_digests: bytes = b""
    chain: list[bytes] = field(default_factory=lambda: [b""])

    @property
    def body(self) -> list[Message]:
        """The messages after the leading system ones."""
        return self.messages[self.lead :]


def _shared_items(items: Sequence[Any], earlier: Conversation) -> int:
    """How many raw items at the start equal the earlier request's (compared at C speed)."""
    shared = 0
    for new, old in zip(items, earlier.items, strict=False):
        if new != old:
            break
        shared += 1
    # A run of assistant items is one message: start again before it, for it may go on.
    while shared and _ends_in_assistant(earlier, shared):
        shared -= 1
    return shared


def _ends_in_assistant(conversation: Conversation, num_items: int) -> bool:
    end = conversation.ends[num_items - 1]
    return end > 0 and conversation.messages[end - 1].role == "assistant"


def _start_from(items: Sequence[Any], earlier: Conversation | None) -> tuple[Conversation, int]:
    shared = _shared_items(items, earlier) if earlier is not None else 0
    if earlier is None or not shared or earlier.ends[shared - 1] <= earlier.lead:
        return Conversation(items=items), 0
    end = earlier.ends[shared - 1]
    return Conversation(
        items=items,
        ends=earlier.ends[:shared],
        messages=earlier.messages[:end],
        lead=earlier.lead,
        lead_digests=earlier.lead_digests,
        chain=earlier.chain[: end - earlier.lead + 1],
    ), shared


def _push(conversation: Conversation, message: Message) -> None:
    messages = conversation.messages
    if message.role == "system" and conversation.lead == len(messages):
        messages.append(message)
        conversation.lead += 1
        conversation.lead_digests += message_digest(message)
        return
    if message.role == "assistant" and messages and messages[-1].role == "assistant":
        messages[-1] = joined(messages[-1], message)
        conversation.chain.pop()
    else:
        messages.append(message)
    conversation.chain.append(extend_digest(conversation.chain[-1], messages[-1]))


def converse(
    items: Sequence[Any], convert: Callable[[Any], Sequence[Message]], earlier: Conversation | None = None
) -> Conversation:
    """Read raw wire messages, reusing the work done for `earlier` where they begin alike.

    Raises whatever `convert` raises on an item that is not of its format.
    """
    conversation, done = _start_from(items, earlier)
    for item in items[done:]:
        for message in convert(item):
            _push(conversation, message)
        conversation.ends.append(len(conversation.messages))
    return conversation
