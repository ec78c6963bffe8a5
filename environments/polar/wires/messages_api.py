"""Anthropic Messages and its token counting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.polar.calls import LiveCall
from environments.polar.errors import BadBody, PolarError
from environments.polar.messages import Message, ToolCall
from environments.polar.rendering import Answer
from environments.polar.request import ModelRequest
from environments.polar.stream_view import Piece
from environments.polar.wires.fields import (
    event,
    need_list,
    need_object,
    need_text,
    positive_int,
    read_hints,
    stop_strings,
)
from environments.types import Wire

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _text(content: Any, where: str, glue: str) -> str:
    """The text of a string or of text blocks; pictures and files are refused."""
    if content is None or isinstance(content, str):
        return need_text(content, where)
    parts = []
    for raw in need_list(content, where):
        block = need_object(raw, f"{where}[]")
        if block.get("type") != "text":
            raise BadBody(f"{where} has a block of type {block.get('type')!r:.80}; this model reads text only")
        parts.append(need_text(block.get("text"), f"{where}[].text"))
    return glue.join(parts)


def _user_messages(content: Any) -> Sequence[Message]:
    """A user turn: tool results become tool messages, the text around them user messages, in order."""
    if not isinstance(content, list):
        return [Message(role="user", text=need_text(content, "messages[].content"))]
    found: list[Message] = []
    text: list[str] = []
    for raw in content:
        block = need_object(raw, "messages[].content[]")
        if block.get("type") != "tool_result":
            text.append(_text([block], "messages[].content", ""))
            continue
        if text:
            found.append(Message(role="user", text="\n".join(text)))
            text = []
        result = _text(block.get("content"), "tool_result.content", "\n")
        found.append(Message(role="tool", text=result, tool_call_id=need_text(block.get("tool_use_id"), "tool_use_id")))
    if text or not found:
        found.append(Message(role="user", text="\n".join(text)))
    return found


def _assistant_message(content: Any) -> Message:
    if not isinstance(content, list):
        return Message(role="assistant", text=need_text(content, "messages[].content"))
    text, reasoning, calls = "", "", []
    for raw in content:
        block = need_object(raw, "messages[].content[]")
        kind = block.get("type")
        if kind == "text":
            text += need_text(block.get("text"), "content[].text")
        elif kind == "thinking":
            reasoning += need_text(block.get("thinking"), "content[].thinking")
        elif kind == "tool_use":
            calls.append(
                ToolCall(
                    call_id=need_text(block.get("id"), "tool_use.id"),
                    name=need_text(block.get("name"), "tool_use.name"),
                    arguments=need_object(block.get("input"), "tool_use.input"),
                )
            )
        elif kind != "redacted_thinking":
            raise BadBody(f"an assistant message has a block of type {kind!r:.80}; want text, thinking or tool_use")
    return Message(role="assistant", text=text, reasoning=reasoning, tool_calls=tuple(calls))


def read_message(raw: Any) -> Sequence[Message]:
    """One message of the array (system prompts are put in front of it as one more)."""
    item = need_object(raw, "messages[]")
    role, content = item.get("role"), item.get("content")
    if role == "system":
        return [Message(role="system", text=_text(content, "system", "\n"))]
    if role == "user":
        return _user_messages(content)
    if role == "assistant":
        return [_assistant_message(content)]
    raise BadBody(f"messages[].role is {role!r:.80}; want user or assistant")


def read_tools(raw: Any) -> tuple[Mapping[str, Any], ...]:
    """Client tools in function form. Tools that run on the vendor's servers have no schema: they are left out."""
    tools = []
    for item in need_list(raw if raw is not None else [], "tools"):
        tool = need_object(item, "tools[]")
        if "input_schema" not in tool:
            continue
        name = need_text(tool.get("name"), "tools[].name")
        if not name:
            raise BadBody("tools[].name is empty; want the tool's name")
        function = {
            "name": name,
            "description": need_text(tool.get("description"), "tools[].description"),
            "parameters": need_object(tool.get("input_schema"), "tools[].input_schema"),
        }
        tools.append({"type": "function", "function": function})
    return tuple(tools)


def _stop_reason(call: LiveCall, answer: Answer) -> str:
    if call.finish_reason == "length":
        return "max_tokens"
    if answer.tool_calls:
        return "tool_use"
    return "stop_sequence" if call.stop_hit is not None else "end_turn"


def _usage(call: LiveCall) -> dict[str, int]:
    return {
        "input_tokens": call.prompt_length,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": len(call.ids),
    }


def _tool_use(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if not isinstance(call.arguments, str) else {}
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}


def _message(request: ModelRequest, call: LiveCall, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{call.tag}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(call),
    }


class MessagesStream:
    """Message events: one content block open at a time."""

    def __init__(self, request: ModelRequest, call: LiveCall) -> None:
        self._request = request
        self._call = call
        self._index = -1
        self._open: str | None = None

    def begin(self) -> bytes:
        start = _message(self._request, self._call, [])
        start["usage"] = {**start["usage"], "output_tokens": 0}
        return event({"type": "message_start", "message": start}, "message_start")

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(self._piece(piece) for piece in pieces)

    def _piece(self, piece: Piece) -> bytes:
        if piece.call is not None:
            block = {**_tool_use(piece.call), "input": {}}
            delta = {"type": "input_json_delta", "partial_json": piece.call.arguments_text()}
            return self._start("call", block) + self._delta(delta) + self._stop()
        if piece.kind == "reasoning":
            opened = self._start("reasoning", {"type": "thinking", "thinking": "", "signature": ""})
            return opened + self._delta({"type": "thinking_delta", "thinking": piece.text})
        return self._start("text", {"type": "text", "text": ""}) + self._delta(
            {"type": "text_delta", "text": piece.text}
        )

    def _start(self, kind: str, block: Mapping[str, Any]) -> bytes:
        if self._open == kind:
            return b""
        closed = self._stop()
        self._index += 1
        self._open = kind
        body = {"type": "content_block_start", "index": self._index, "content_block": block}
        return closed + event(body, "content_block_start")

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        body = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event(body, "content_block_delta")

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signature = b""
        if self._open == "reasoning":
            signature = self._delta({"type": "signature_delta", "signature": self._call.tag})
        self._open = None
        return signature + event({"type": "content_block_stop", "index": self._index}, "content_block_stop")

    def end(self, answer: Answer) -> bytes:
        delta = {"stop_reason": _stop_reason(self._call, answer), "stop_sequence": self._call.stop_hit}
        body = {"type": "message_delta", "delta": delta, "usage": _usage(self._call)}
        return self._stop() + event(body, "message_delta") + event({"type": "message_stop"}, "message_stop")

    def failed(self, error: PolarError) -> bytes:
        return event(messages_error(error), "error")


def messages_error(error: PolarError) -> dict[str, Any]:
    """The error object that Anthropic's SDKs read."""
    kind = ERROR_TYPES.get(error.status, "api_error")
    message = error.message
    if error.code == "context_length_exceeded":  # the words that harnesses look for before they compact
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message, "code": error.code}}


class MessagesWire:
    """`POST /v1/messages` and `/v1/messages/count_tokens`."""

    name: Wire = "messages"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
        items = list(need_list(body.get("messages"), "messages"))
        if not items:
            raise BadBody("messages is empty; want at least one")
        if body.get("system"):
            items.insert(0, {"role": "system", "content": body["system"]})
        return ModelRequest(
            wire=self.name,
            items=items,
            convert=read_message,
            tools=read_tools(body.get("tools")),
            max_tokens=positive_int(body.get("max_tokens"), "max_tokens"),
            stop=stop_strings(body.get("stop_sequences"), "stop_sequences"),
            stream=bool(body.get("stream")),
            model=need_text(body.get("model"), "model"),
            hints=read_hints(headers),
        )

    def answer(self, request: ModelRequest, call: LiveCall, answer: Answer) -> Mapping[str, Any]:
        content: list[dict[str, Any]] = []
        if answer.reasoning:
            content.append({"type": "thinking", "thinking": answer.reasoning, "signature": call.tag})
        if answer.text:
            content.append({"type": "text", "text": answer.text})
        content += [_tool_use(c) for c in answer.tool_calls]
        ending = {"stop_reason": _stop_reason(call, answer), "stop_sequence": call.stop_hit}
        return {**_message(request, call, content), **ending}

    def stream(self, request: ModelRequest, call: LiveCall) -> MessagesStream:
        return MessagesStream(request, call)

    def error(self, error: PolarError) -> Mapping[str, Any]:
        return messages_error(error)
