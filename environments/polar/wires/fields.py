"""Reading JSON fields of untrusted bodies: each function says what was got and what is wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from environments.polar.errors import BadBody
from environments.polar.lineage import Hints


def need_list(value: Any, where: str) -> Sequence[Any]:
    """A JSON array, else BadBody."""
    if not isinstance(value, list):
        raise BadBody(f"{where} is {_kind(value)}; want an array")
    return value


def need_object(value: Any, where: str) -> Mapping[str, Any]:
    """A JSON object, else BadBody."""
    if not isinstance(value, dict):
        raise BadBody(f"{where} is {_kind(value)}; want an object")
    return value


def need_text(value: Any, where: str) -> str:
    """A JSON string that can be encoded, else BadBody. Null counts as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadBody(f"{where} is {_kind(value)}; want a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadBody(f"{where} holds half a surrogate pair, which is no text") from error
    return value


def positive_int(value: Any, where: str) -> int | None:
    """A positive integer or null, else BadBody."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadBody(f"{where} is {value!r:.80}; want a positive integer")
    return value


def stop_strings(value: Any, where: str) -> tuple[str, ...]:
    """One string, an array of strings, or null; empty strings are dropped."""
    values = [value] if isinstance(value, str) else need_list(value if value is not None else [], where)
    return tuple(s for s in (need_text(v, where) for v in values) if s)


def text_of(content: Any, where: str, kinds: Sequence[str]) -> str:
    """The text of a string or of an array of text blocks of the given kinds; other blocks are refused."""
    if content is None or isinstance(content, str):
        return need_text(content, where)
    parts = []
    for block in need_list(content, where):
        if isinstance(block, str):
            parts.append(need_text(block, where))
            continue
        kind = need_object(block, where).get("type")
        if kind not in kinds:
            raise BadBody(f"{where} has a block of type {kind!r:.80}; this model reads text blocks only")
        parts.append(need_text(block.get("text", block.get("refusal")), where))
    return "".join(parts)


def read_hints(headers: Mapping[str, str]) -> Hints:
    """What the headers say of the agent behind a request, whatever the wire: opencode speaks three of them."""
    child = headers.get("x-session-id", "") if headers.get("x-parent-session-id") else ""
    return Hints(agent_id=headers.get("x-claude-code-agent-id", "") or child)


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {text}\n\n".encode()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
