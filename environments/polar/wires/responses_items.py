"""OpenAI Responses: reading input items and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from environments.polar.errors import BadBody
from environments.polar.messages import Message, ToolCall, parse_arguments
from environments.polar.wires.fields import need_list, need_object, need_text, text_of

TEXT_KINDS = ("input_text", "output_text", "text", "refusal")
# Items that say what a vendor's server did; they hold no words of the conversation.
IGNORED_ITEMS = ("web_search_call", "additional_tools")
CUSTOM_SCHEMA = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
NAMESPACE_GLUE = "."


def _message(item: Mapping[str, Any]) -> Message:
    role = item.get("role")
    text = text_of(item.get("content"), "input[].content", TEXT_KINDS)
    if role in ("system", "developer"):
        return Message(role="system", text=text)
    if role == "user":
        return Message(role="user", text=text)
    if role == "assistant":
        return Message(role="assistant", text=text)
    raise BadBody(f"input[].role is {role!r:.80}; want user, assistant, system or developer")


def _call(item: Mapping[str, Any], *, custom: bool) -> Message:
    if custom:
        arguments: Mapping[str, Any] | str = {"input": need_text(item.get("input"), "custom_tool_call.input")}
    else:
        arguments = parse_arguments(need_text(item.get("arguments"), "function_call.arguments"))
    name = need_text(item.get("name"), "input[].name")
    space = need_text(item.get("namespace"), "input[].namespace")
    call_id = need_text(item.get("call_id"), "input[].call_id")
    full = f"{space}{NAMESPACE_GLUE}{name}" if space else name
    return Message(role="assistant", text="", tool_calls=(ToolCall(call_id=call_id, name=full, arguments=arguments),))


def _reasoning(item: Mapping[str, Any]) -> Message:
    parts = [
        need_text(need_object(part, "reasoning[]").get("text"), "reasoning[].text")
        for part in need_list(item.get("content") or item.get("summary") or [], "reasoning")
    ]
    return Message(role="assistant", text="", reasoning="\n".join(parts))


def read_item(raw: Any) -> Sequence[Message]:
    """One input item. Items of one answer (reasoning, text, calls) are joined to one turn later."""
    item = need_object(raw, "input[]")
    kind = item.get("type", "message")
    if kind == "message":
        return [_message(item)]
    if kind in ("function_call", "custom_tool_call"):
        return [_call(item, custom=kind == "custom_tool_call")]
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = text_of(item.get("output"), "input[].output", TEXT_KINDS)
        return [Message(role="tool", text=output, tool_call_id=need_text(item.get("call_id"), "input[].call_id"))]
    if kind == "reasoning":
        return [_reasoning(item)]
    if kind in IGNORED_ITEMS:
        return []
    raise BadBody(f"input[] has an item of type {kind!r:.80}; this endpoint keeps no state and reads text only")


def _function(tool: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    custom = tool.get("type") == "custom"
    name = need_text(tool.get("name"), "tools[].name")
    if not name:
        raise BadBody("tools[].name is empty; want the tool's name")
    function = {
        "name": prefix + name,
        "description": need_text(tool.get("description"), "tools[].description"),
        "parameters": CUSTOM_SCHEMA if custom else need_object(tool.get("parameters") or {}, "tools[].parameters"),
    }
    return {"type": "function", "function": function}


def _tools(raw: Any, prefix: str, custom: set[str]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for item in need_list(raw if raw is not None else [], "tools"):
        tool = need_object(item, "tools[]")
        kind = tool.get("type")
        if kind == "namespace":
            name = need_text(tool.get("name"), "tools[].name")
            found += _tools(tool.get("tools"), f"{name}{NAMESPACE_GLUE}", custom)
        elif kind in ("function", "custom"):
            found.append(_function(tool, prefix))
            if kind == "custom":
                custom.add(found[-1]["function"]["name"])
    return found


def read_tools(body: Mapping[str, Any], items: Sequence[Any]) -> tuple[tuple[Mapping[str, Any], ...], frozenset[str]]:
    """All tools that a client runs, in function form, and the names of those that take free text.

    Some come as `additional_tools` items. Tools that run on the vendor's servers are left out.
    """
    custom: set[str] = set()
    found = _tools(body.get("tools"), "", custom)
    for item in items:
        if isinstance(item, dict) and item.get("type") == "additional_tools":
            found += _tools(item.get("tools"), "", custom)
    return tuple(found), frozenset(custom)
