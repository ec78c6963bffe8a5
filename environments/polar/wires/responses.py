"""OpenAI Responses: answers, whole and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from environments.polar.calls import LiveCall
from environments.polar.errors import BadBody, PolarError
from environments.polar.messages import ToolCall
from environments.polar.rendering import Answer
from environments.polar.request import ModelRequest
from environments.polar.stream_view import Piece
from environments.polar.wires.chat import openai_error
from environments.polar.wires.fields import event, need_list, need_text, positive_int, read_hints
from environments.polar.wires.responses_items import NAMESPACE_GLUE, read_item, read_tools
from environments.types import Wire


def _usage(call: LiveCall) -> dict[str, Any]:
    prompt, sampled = call.prompt_length, len(call.ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def _response(request: ModelRequest, call: LiveCall, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    cut = status == "incomplete"
    return {
        "id": f"resp_{call.tag}",
        "object": "response",
        "created_at": int(call.started_at),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": request.echo.get("instructions"),
        "max_output_tokens": request.max_tokens,
        "metadata": {},
        "model": request.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": call.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": call.sampling.top_p,
        "truncation": "disabled",
        "usage": _usage(call) if status in ("completed", "incomplete") else None,
        "user": None,
    }


def _status(call: LiveCall) -> str:
    return "incomplete" if call.finish_reason == "length" else "completed"


def _reasoning_item(call: LiveCall, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{call.tag}", "type": "reasoning", "summary": [], "content": content}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _text_item(call: LiveCall, text: str | None, index: int) -> dict[str, Any]:
    done = text is not None
    return {
        "id": f"msg_{call.tag}_{index}",
        "type": "message",
        "role": "assistant",
        "status": "completed" if done else "in_progress",
        "content": [_text_part(text)] if text is not None else [],
    }


def _call_item(tool: ToolCall, custom: frozenset[str], *, done: bool) -> dict[str, Any]:
    head = {"id": f"fc_{tool.call_id}", "call_id": tool.call_id, "status": "completed" if done else "in_progress"}
    if tool.name in custom:
        arguments = tool.arguments
        given = arguments.get("input") if not isinstance(arguments, str) else None
        text = given if isinstance(given, str) else tool.arguments_text()
        return {**head, "type": "custom_tool_call", "name": tool.name, "input": text if done else ""}
    space, _, name = tool.name.rpartition(NAMESPACE_GLUE)
    named = {"name": name, "namespace": space} if space else {"name": tool.name}
    return {**head, "type": "function_call", **named, "arguments": tool.arguments_text() if done else ""}


class ResponsesStream:
    """Response events: one output item open at a time, each event numbered."""

    def __init__(self, request: ModelRequest, call: LiveCall) -> None:
        self._request = request
        self._call = call
        self._custom: frozenset[str] = request.echo["custom"]
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text = ""

    def _event(self, kind: str, **data: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        return event(body, kind)

    def begin(self) -> bytes:
        body = _response(self._request, self._call, "in_progress", [])
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(self._piece(piece) for piece in pieces)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id(), "output_index": len(self._output), "content_index": 0}

    def _item_id(self) -> str:
        prefix = f"rs_{self._call.tag}"
        return prefix if self._open == "reasoning" else f"msg_{self._call.tag}_{len(self._output)}"

    def _piece(self, piece: Piece) -> bytes:
        if piece.call is not None:
            return self._close() + self._whole_call(piece.call)
        opened = self._begin_item(piece.kind) if self._open != piece.kind else b""
        self._text += piece.text
        kind = "response.reasoning_text.delta" if piece.kind == "reasoning" else "response.output_text.delta"
        more: dict[str, Any] = {} if piece.kind == "reasoning" else {"logprobs": []}
        return opened + self._event(kind, **self._place, delta=piece.text, **more)

    def _begin_item(self, kind: str) -> bytes:
        closed = self._close()
        self._open, self._text = kind, ""
        index = len(self._output)
        if kind == "reasoning":
            item = _reasoning_item(self._call, "")
            return closed + self._event("response.output_item.added", output_index=index, item=item)
        item = _text_item(self._call, None, index)
        added = self._event("response.output_item.added", output_index=index, item=item)
        return closed + added + self._event("response.content_part.added", **self._place, part=_text_part(""))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        if self._open == "reasoning":
            item = _reasoning_item(self._call, self._text)
            done = self._event("response.reasoning_text.done", **self._place, text=self._text)
        else:
            item = _text_item(self._call, self._text, len(self._output))
            done = self._event("response.output_text.done", **self._place, text=self._text, logprobs=[])
            done += self._event("response.content_part.done", **self._place, part=_text_part(self._text))
        self._open = None
        return done + self._item_done(item)

    def _item_done(self, item: dict[str, Any]) -> bytes:
        done = self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return done

    def _whole_call(self, tool: ToolCall) -> bytes:
        item, index = _call_item(tool, self._custom, done=True), len(self._output)
        begun = _call_item(tool, self._custom, done=False)
        added = self._event("response.output_item.added", output_index=index, item=begun)
        field = "input" if item["type"] == "custom_tool_call" else "arguments"
        stem = "custom_tool_call_input" if field == "input" else "function_call_arguments"
        place = {"item_id": item["id"], "output_index": index}
        delta = self._event(f"response.{stem}.delta", **place, delta=item[field])
        named = {"name": item["name"]} if field == "arguments" else {}
        done = self._event(f"response.{stem}.done", **place, **named, **{field: item[field]})
        return added + delta + done + self._item_done(item)

    def end(self, answer: Answer) -> bytes:
        closed, status = self._close(), _status(self._call)
        body = _response(self._request, self._call, status, self._output)
        return closed + self._event(f"response.{status}", response=body)

    def failed(self, error: PolarError) -> bytes:
        body = _response(self._request, self._call, "failed", self._output)
        body["error"] = {"code": "server_error", "message": error.message}
        return self._event("response.failed", response=body)


class ResponsesWire:
    """`POST /v1/responses`."""

    name: Wire = "responses"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
        if body.get("previous_response_id"):
            raise BadBody("previous_response_id is set; this endpoint keeps no answers: send the whole input")
        raw = body.get("input")
        items = [{"role": "user", "content": raw}] if isinstance(raw, str) else list(need_list(raw, "input"))
        if not items:
            raise BadBody("input is empty; want at least one item")
        instructions = need_text(body.get("instructions"), "instructions")
        if instructions:
            items.insert(0, {"role": "system", "content": instructions})
        tools, custom = read_tools(body, items)
        return ModelRequest(
            wire=self.name,
            items=items,
            convert=read_item,
            tools=tools,
            max_tokens=positive_int(body.get("max_output_tokens"), "max_output_tokens"),
            stop=(),
            stream=bool(body.get("stream")),
            model=need_text(body.get("model"), "model"),
            hints=read_hints(headers),
            echo={"custom": custom, "instructions": instructions or None},
        )

    def answer(self, request: ModelRequest, call: LiveCall, answer: Answer) -> Mapping[str, Any]:
        output = [_reasoning_item(call, answer.reasoning)] if answer.reasoning else []
        if answer.text:
            output.append(_text_item(call, answer.text, len(output)))
        output += [_call_item(c, request.echo["custom"], done=True) for c in answer.tool_calls]
        return _response(request, call, _status(call), output)

    def stream(self, request: ModelRequest, call: LiveCall) -> ResponsesStream:
        return ResponsesStream(request, call)

    def error(self, error: PolarError) -> Mapping[str, Any]:
        return openai_error(error)
