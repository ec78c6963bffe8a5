"""The command-line agents that are shipped, by name."""

from __future__ import annotations

from collections.abc import Mapping

from environments.harnesses.command import CommandSpec
from environments.harnesses.specs.claude_code import CLAUDE_CODE
from environments.harnesses.specs.codex import CODEX
from environments.harnesses.specs.opencode import OPENCODE
from environments.harnesses.specs.qwen_code import QWEN_CODE

SPECS: Mapping[str, CommandSpec] = {spec.name: spec for spec in (CLAUDE_CODE, CODEX, QWEN_CODE, OPENCODE)}
