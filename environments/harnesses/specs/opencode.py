"""opencode: chat completions through the OpenAI-compatible provider, streaming, with a title call beside the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from environments.harnesses.command import CommandSpec, Errand, Word
from environments.harnesses.inside import Ended, Invocation

CONTEXT_TOKENS, OUTPUT_TOKENS = 131_072, 8_192  # what opencode plans with; the engine's own limits still hold


def _config(errand: Errand) -> Mapping[str, Any]:
    limit = {"context": CONTEXT_TOKENS, "output": OUTPUT_TOKENS}
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow"},
        "provider": {
            "longbreath": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "longbreath",
                "options": {"baseURL": f"{errand.url}/v1", "apiKey": errand.api_key},
                "models": {errand.model: {"name": errand.model, "tool_call": True, "limit": limit}},
            }
        },
    }


def _invoke(errand: Errand, program: tuple[str, ...]) -> Invocation:
    return Invocation(
        argv=(*program, "run", "--format", "json", "--model", f"longbreath/{errand.model}", errand.prompt),
        env={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        files={f"{errand.home}/.config/opencode/opencode.json": json.dumps(_config(errand))},
    )


def _read(ended: Ended) -> Word:
    """Events as JSON lines: the last text is the answer; an error event counts against it."""
    answer, error = "", ""
    for line in ended.stdout.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a notice between the events
        if not isinstance(event, dict):
            continue
        part = event.get("part")
        if event.get("type") == "text" and isinstance(part, dict):
            answer = str(part.get("text"))
        if event.get("type") == "error":
            error = line
    well = ended.exit_code == 0 and bool(answer) and not error
    return Word(ended_well=well, text=answer.strip() if well else error or f"exit {ended.exit_code}")


def _shell_call(command: str) -> tuple[str, Mapping[str, Any]]:
    return "bash", {"command": command, "description": "Run it"}


OPENCODE = CommandSpec(
    name="opencode",
    package="opencode-ai",
    versions=("1.18.33",),
    program="node_modules/opencode-ai/bin/opencode.exe",
    needs_node=False,
    invoke=_invoke,
    read=_read,
    shell_call=_shell_call,
    side_calls=("a title call, beside the first request and without tools",),
)
