"""The action protocol: what an agent may say in one turn, the same for a tiny and a large model.

A turn is free reasoning (the model's think block) and then either one call of the `bash` tool with strict JSON
arguments, or the final answer: strict JSON `{"answer": "..."}` and nothing else. Reasoning is never judged for
form; the action is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BASH_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class ActionError(ValueError):
    """An action that is not of the protocol's form. The message is fit to show the agent."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [k for k, _ in pairs]
    if len(set(keys)) != len(keys):
        raise ActionError(f"a key stands twice in {keys}")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ActionError(f"{name} is no JSON value")


def strict_json(text: str) -> Any:
    """The one JSON value that `text` is, white space around it allowed.

    Raises ActionError on anything before or after it, duplicate keys, NaN or Infinity.
    """
    try:
        return json.loads(text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ActionError(f"not one JSON value: {error}") from error


def _one_string(value: Any, key: str, what: str) -> str:
    if not isinstance(value, dict) or set(value) != {key} or not isinstance(value[key], str):
        raise ActionError(f'{what}: want {{"{key}": "..."}} with that one key and a string')
    return str(value[key])


def parse_final(text: str) -> str:
    """The answer in a final payload. Raises ActionError unless it is exactly `{"answer": "..."}`."""
    return _one_string(strict_json(text), "answer", "final answer")


def parse_command(arguments: str) -> str:
    """The command in a bash call's argument string. Raises ActionError unless it is `{"command": "..."}`."""
    command = _one_string(strict_json(arguments), "command", "bash arguments")
    if not command.strip():
        raise ActionError("bash arguments: the command is empty")
    return command
