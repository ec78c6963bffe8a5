"""Gate 2: the agent keeps its language and its place. Reasoning, actions and final payload are all subject to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from environments.actions import ActionError, parse_final
from environments.gates.base import Prefix
from environments.gates.commands import policy_of, read_commands
from environments.gates.language import look_alike, switch_of_language
from environments.suites.base import Suite
from environments.types import GateResult, Turn


def _spoken(payload: str) -> str:
    try:
        return parse_final(payload)
    except ActionError:
        return payload


@dataclass(frozen=True, slots=True, kw_only=True)
class InvarianceGate:
    """No switch of language in mid-sentence, no forbidden command. `language` False judges commands only."""

    language: bool = True
    name: str = "invariance"

    def check(self, prefix: Prefix, suite: Suite) -> GateResult:
        """'passed', or 'failed' with the first turn that breaks it. Never raises on any text."""
        fault = min(self._faults(prefix, suite), default=None)
        if fault is None:
            return GateResult(name=self.name, outcome="passed")
        return GateResult(name=self.name, outcome="failed", detail=fault[1])

    def _faults(self, prefix: Prefix, suite: Suite) -> Iterator[tuple[int, str]]:
        """(position, what) of the first fault of each kind; the final payload stands after all turns."""
        if self.language:
            yield from self._language(prefix)
        policy = policy_of(suite.forbidden(prefix.task), suite.box(prefix.task).workdir)
        for shell in _shells(prefix.turns):
            found = read_commands([prefix.turns[i].action for i in shell], policy)
            if found is not None:
                at, finding = shell[found[0]], found[1]
                yield at, f"turn {prefix.turns[at].index}: {finding.act}: {finding.detail}"

    def _language(self, prefix: Prefix) -> Iterator[tuple[int, str]]:
        for at, turn in enumerate(prefix.turns):
            found = switch_of_language(turn.thought) or look_alike(turn.action)
            if found is not None:
                yield at, f"turn {turn.index}: language: {found}"
                return
        last = {"final thought": prefix.final_thought, "final payload": _spoken(prefix.final_payload or "")}
        for what, text in last.items():
            found = switch_of_language(text)
            if found is not None:
                yield len(prefix.turns), f"{what}: language: {found}"
                return


def _shells(turns: tuple[Turn, ...]) -> Iterator[list[int]]:
    """Turns that share one kept shell: all of the sandbox's own; each turn of an external harness alone.

    A malformed action (`parse`) never ran, so it is no command.
    """
    ran = [i for i, turn in enumerate(turns) if turn.error_class != "parse"]
    yield [i for i in ran if turns[i].source == "sandbox"]
    yield from ([i] for i in ran if turns[i].source == "wire")
