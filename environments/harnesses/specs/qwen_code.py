"""Qwen Code: OpenAI chat completions, streaming. 0.15.10 runs on Node 20's npm, 0.24.4 on 22's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from environments.harnesses.command import CommandSpec, Errand, Word
from environments.harnesses.inside import Ended, Invocation

SETTINGS = {
    "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "security": {"auth": {"selectedType": "openai"}},
    "telemetry": {"enabled": False},
}


def _invoke(errand: Errand, program: tuple[str, ...]) -> Invocation:
    return Invocation(
        argv=(*program, "-p", errand.prompt, "--yolo"),
        env={
            "OPENAI_BASE_URL": f"{errand.url}/v1",
            "OPENAI_API_KEY": errand.api_key,
            "OPENAI_MODEL": errand.model,
        },
        files={f"{errand.home}/.qwen/settings.json": json.dumps(SETTINGS)},
    )


def _read(ended: Ended) -> Word:
    """Standard output is the answer; an API error is printed in its place, with exit code 0 in some versions."""
    text = ended.stdout.strip()
    well = ended.exit_code == 0 and bool(text) and not text.startswith("[API Error")
    return Word(ended_well=well, text=text or f"exit {ended.exit_code}")


def _shell_call(command: str) -> tuple[str, Mapping[str, Any]]:
    return "run_shell_command", {"command": command, "is_background": False}


QWEN_CODE = CommandSpec(
    name="qwen_code",
    package="@qwen-code/qwen-code",
    versions=("0.15.10", "0.24.4"),
    program="node_modules/@qwen-code/qwen-code/cli.js",
    needs_node=True,
    invoke=_invoke,
    read=_read,
    shell_call=_shell_call,
    side_calls=(),
)
