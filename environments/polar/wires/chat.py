"""OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.polar.calls import LiveCall
from environments.polar.errors import BadBody, PolarError
from environments.polar.messages import Message, ToolCall, parse_arguments
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
    text_of,
)
from environments.types import Wire

TEXT_KINDS = ("text", "input_text", "output_text", "refusal")
ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def openai_error(error: PolarError) -> dict[str, Any]:
    """The error object that OpenAI's SDKs read, for chat completions and responses alike."""
    kind = ERROR_TYPES.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def _tool_calls(raw: Any) -> tuple[ToolCall, ...]:
    calls = []
    for item in need_list(raw if raw is not None else [], "messages[].tool_calls"):
        function = need_object(need_object(item, "tool_calls[]").get("function"), "tool_calls[].function")
        arguments = function.get("arguments")
        if not isinstance(arguments, dict):
            arguments = parse_arguments(need_text(arguments, "tool_calls[].function.arguments"))
        calls.append(
            ToolCall(
                call_id=need_text(item.get("id"), "tool_calls[].id"),
                name=need_text(function.get("name"), "tool_calls[].function.name"),
                arguments=arguments,
            )
        )
    return tuple(calls)


def read_message(raw: Any) -> Sequence[Message]:
    """One chat message."""
    item = need_object(raw, "messages[]")
    role = item.get("role")
    text = text_of(item.get("content"), "messages[].content", TEXT_KINDS)
    if role in ("system", "developer"):
        return [Message(role="system", text=text)]
    if role == "user":
        return [Message(role="user", text=text)]
    if role in ("tool", "function"):
        return [Message(role="tool", text=text, tool_call_id=need_text(item.get("tool_call_id"), "tool_call_id"))]
    if role == "assistant":
        reasoning = item.get("reasoning_content") or item.get("reasoning")
        return [
            Message(
                role="assistant",
                text=text,
                reasoning=need_text(reasoning, "messages[].reasoning_content"),
                tool_calls=_tool_calls(item.get("tool_calls")),
            )
        ]
    raise BadBody(f"messages[].role is {role!r:.80}; want system, developer, user, assistant or tool")


def read_tool(raw: Any) -> Mapping[str, Any]:
    """One function tool, as it will be rendered."""
    tool = need_object(raw, "tools[]")
    function = need_object(tool.get("function"), "tools[].function")
    if not need_text(function.get("name"), "tools[].function.name"):
        raise BadBody("tools[].function.name is empty; want the tool's name")
    return {"type": "function", "function": function}


def _finish(call: LiveCall, answer: Answer) -> str:
    if call.finish_reason == "length":
        return "length"
    return "tool_calls" if answer.tool_calls else "stop"


def _call_object(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_text()},
    }


def _usage(call: LiveCall) -> dict[str, Any]:
    prompt, sampled = call.prompt_length, len(call.ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


class ChatStream:
    """Chat completion chunks."""

    def __init__(self, request: ModelRequest, call: LiveCall) -> None:
        self._request = request
        self._call = call
        self._tools = 0

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**_envelope(self._request, self._call, "chat.completion.chunk"), "choices": [choice], **more})

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(self._piece(piece) for piece in pieces)

    def _piece(self, piece: Piece) -> bytes:
        if piece.kind == "reasoning":
            return self._chunk({"reasoning_content": piece.text})
        if piece.call is None:
            return self._chunk({"content": piece.text})
        index, whole = self._tools, _call_object(piece.call)
        self._tools += 1
        opened = {**whole, "index": index, "function": {"name": piece.call.name, "arguments": ""}}
        arguments = {"index": index, "function": {"arguments": piece.call.arguments_text()}}
        return self._chunk({"tool_calls": [opened]}) + self._chunk({"tool_calls": [arguments]})

    def end(self, answer: Answer) -> bytes:
        parts = [self._chunk({}, _finish(self._call, answer))]
        if self._request.echo.get("include_usage"):
            head = _envelope(self._request, self._call, "chat.completion.chunk")
            parts.append(event({**head, "choices": [], "usage": _usage(self._call)}))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def failed(self, error: PolarError) -> bytes:
        return event(openai_error(error))


def _envelope(request: ModelRequest, call: LiveCall, kind: str) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "object": kind,
        "created": int(call.started_at),
        "model": request.model,
    }


class ChatWire:
    """`POST /v1/chat/completions`."""

    name: Wire = "chat"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
        items = need_list(body.get("messages"), "messages")
        if not items:
            raise BadBody("messages is empty; want at least one")
        if body.get("n") not in (None, 1):
            raise BadBody(f"n is {body.get('n')!r:.80}; this endpoint gives one choice a request")
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        options = need_object(body.get("stream_options") or {}, "stream_options")
        return ModelRequest(
            wire=self.name,
            items=items,
            convert=read_message,
            tools=tuple(read_tool(t) for t in need_list(body.get("tools") or [], "tools")),
            max_tokens=positive_int(limit, "max_tokens"),
            stop=stop_strings(body.get("stop"), "stop"),
            stream=bool(body.get("stream")),
            model=need_text(body.get("model"), "model"),
            hints=read_hints(headers),
            echo={"include_usage": bool(options.get("include_usage"))},
        )

    def answer(self, request: ModelRequest, call: LiveCall, answer: Answer) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [_call_object(c) for c in answer.tool_calls]
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(call, answer)}
        return {**_envelope(request, call, "chat.completion"), "choices": [choice], "usage": _usage(call)}

    def stream(self, request: ModelRequest, call: LiveCall) -> ChatStream:
        return ChatStream(request, call)

    def error(self, error: PolarError) -> Mapping[str, Any]:
        return openai_error(error)
