"""Gate 1: the form of what the agent hands over. Its reasoning is never judged for form."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from environments.actions import ActionError, parse_final, strict_json
from environments.gates.base import Prefix
from environments.suites.base import Suite
from environments.types import GateResult

FormatScope = Literal["payload", "actions", "artifact"]
PayloadForm = Literal["answer", "json", "python", "text"]


def _json(text: str) -> None:
    strict_json(text)


def _python(text: str) -> None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ActionError(f"not python: {error}") from error
    if not tree.body:
        raise ActionError("not python: there is no statement in it")


def _text(text: str) -> None:
    if not text.strip():
        raise ActionError("it is empty")


def _answer(text: str) -> None:
    if not parse_final(text).strip():
        raise ActionError("final answer: the answer is empty")


_FORMS: dict[PayloadForm, Callable[[str], None]] = {"answer": _answer, "json": _json, "python": _python, "text": _text}


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatGate:
    """Judges form within `scope`: the final payload, every action of the run, the declared artifact's text.

    `form` is what payload and artifact must be, alone and whole: `answer` ({"answer": "..."}), any strict `json`,
    `python`, or non-empty `text` (for harnesses whose last word is free). With the scope `actions` one malformed
    action fails the gate; without it that is an error observation to the agent and nothing more.
    """

    scope: tuple[FormatScope, ...] = ("payload",)
    form: PayloadForm = "answer"
    name: str = "format"

    def __post_init__(self) -> None:
        if not self.scope:
            raise ValueError("format gate: scope is empty; want at least one of payload, actions, artifact")

    def check(self, prefix: Prefix, suite: Suite) -> GateResult:
        """'passed', or 'failed' with what was wrong and where. Never raises on any text."""
        checks = {"payload": self._payload, "actions": self._actions, "artifact": self._artifact}
        faults = (checks[scope](prefix) for scope in self.scope)
        fault = next((f for f in faults if f is not None), None)
        return GateResult(name=self.name, outcome="passed" if fault is None else "failed", detail=fault or "")

    def _form_of(self, text: str, what: str) -> str | None:
        try:
            _FORMS[self.form](text)
        except ActionError as error:
            return f"{what}: {error}"
        return None

    def _payload(self, prefix: Prefix) -> str | None:
        if prefix.final_payload is None:
            return "final payload: none was handed in" if prefix.finished else None
        return self._form_of(prefix.final_payload, "final payload")

    def _actions(self, prefix: Prefix) -> str | None:
        bad = next((t for t in prefix.turns if t.error_class == "parse"), None)
        return f"turn {bad.index}: a malformed action" if bad is not None else None

    def _artifact(self, prefix: Prefix) -> str | None:
        if prefix.artifact is None:
            return "artifact: there is none" if prefix.finished else None
        return self._form_of(prefix.artifact, "artifact")
