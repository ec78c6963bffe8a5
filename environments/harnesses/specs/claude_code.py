"""Claude Code in print mode: Anthropic Messages, always streaming. 2.1.197 runs on Node 20's npm, 2.1.332 on 22's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from environments.harnesses.command import CommandSpec, Errand, Word
from environments.harnesses.inside import Ended, Invocation


def _invoke(errand: Errand, program: tuple[str, ...]) -> Invocation:
    timeout_ms = str(round(errand.command_timeout_s * 1000))
    words = ("-p", errand.prompt, "--output-format", "json", "--model", errand.model, "--allowedTools", "Bash")
    return Invocation(
        # The step past the last turn is the answer.
        argv=(*program, *words, "--max-turns", str(errand.max_turns + 1)),
        env={
            "ANTHROPIC_BASE_URL": errand.url,
            "ANTHROPIC_API_KEY": errand.api_key,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": errand.model,
            "BASH_DEFAULT_TIMEOUT_MS": timeout_ms,
            "BASH_MAX_TIMEOUT_MS": timeout_ms,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": "2",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        },
    )


def _read(ended: Ended) -> Word:
    """One JSON object on stdout; `subtype` says success even where `is_error` is true, so that is what counts."""
    try:
        said = json.loads(ended.stdout)
    except (ValueError, RecursionError):
        return Word(ended_well=False, text=f"exit {ended.exit_code}, no JSON result")
    if not isinstance(said, dict):
        return Word(ended_well=False, text=f"exit {ended.exit_code}, no JSON object")
    well = ended.exit_code == 0 and said.get("is_error") is False and said.get("subtype") == "success"
    return Word(ended_well=well, text=str(said.get("result") or said.get("subtype") or ""))


def _shell_call(command: str) -> tuple[str, Mapping[str, Any]]:
    return "Bash", {"command": command, "description": "Run it"}


CLAUDE_CODE = CommandSpec(
    name="claude_code",
    package="@anthropic-ai/claude-code",
    versions=("2.1.197", "2.1.332"),
    program="node_modules/@anthropic-ai/claude-code/bin/claude.exe",
    needs_node=False,
    invoke=_invoke,
    read=_read,
    shell_call=_shell_call,
    side_calls=("HEAD / and /api/hello probes", "count_tokens", "topic and title calls, which carry no tools"),
)
