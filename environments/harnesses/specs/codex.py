"""Codex CLI: OpenAI Responses, streaming, through a provider of its own in config.toml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from environments.harnesses.command import CommandSpec, Errand, Word
from environments.harnesses.inside import Ended, Invocation

KEY_VARIABLE = "LONGBREATH_API_KEY"
CONFIG = """\
model = {model}
model_provider = "longbreath"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.longbreath]
name = "longbreath"
base_url = {base_url}
env_key = "{key_variable}"
wire_api = "responses"
request_max_retries = 2
stream_max_retries = 2
"""


def _invoke(errand: Errand, program: tuple[str, ...]) -> Invocation:
    home = f"{errand.home}/.codex"  # not below /tmp, where Codex refuses to keep its helpers
    config = CONFIG.format(
        model=json.dumps(errand.model), base_url=json.dumps(f"{errand.url}/v1"), key_variable=KEY_VARIABLE
    )
    words = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", errand.prompt)
    return Invocation(
        argv=(*program, *words),
        env={"CODEX_HOME": home, KEY_VARIABLE: errand.api_key},
        files={f"{home}/config.toml": config},
    )


def _events(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Codex's own notices stand between the events
        if isinstance(event, dict):
            yield event


def _read(ended: Ended) -> Word:
    """Events as JSON lines; the last agent message is the answer, and a turn that failed says why."""
    answer, error, finished = "", "", False
    for event in _events(ended.stdout):
        item = event.get("item")
        if event.get("type") == "item.completed" and isinstance(item, dict) and item.get("type") == "agent_message":
            answer = str(item.get("text"))
        if event.get("type") in ("error", "turn.failed"):
            error = json.dumps(event)
        finished = finished or event.get("type") == "turn.completed"
    well = finished and ended.exit_code == 0
    return Word(ended_well=well, text=answer if well else error or f"exit {ended.exit_code}")


def _shell_call(command: str) -> tuple[str, Mapping[str, Any]]:
    return "exec_command", {"cmd": command}


CODEX = CommandSpec(
    name="codex",
    package="@openai/codex",
    versions=("0.171.0",),
    program="node_modules/@openai/codex/bin/codex.js",
    needs_node=True,
    invoke=_invoke,
    read=_read,
    shell_call=_shell_call,
    side_calls=("the model listing",),
)
