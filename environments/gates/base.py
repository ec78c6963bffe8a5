"""The gate protocol. Gates run in order; the first failure gives reward 0 and stops.

Gates 1 and 2 are pure functions over a trajectory prefix: the rollout loop may end a rollout with them as soon as
they fail, and the judge stage runs them again, with authority, over the whole record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from environments.suites.base import Suite
from environments.types import GateResult, TaskSpec, Turn

GateMode = Literal["enforce", "observe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What gates 1 and 2 may see: the task, the turns so far, and the final payload if one was handed in.

    `finished` is False while the rollout still runs or when it ended otherwise than by the agent's word: a payload
    that is missing is then no failure. `artifact` is the text of the declared artifact, None where there is none.
    `final_thought` is what was thought before the payload.
    """

    task: TaskSpec
    turns: tuple[Turn, ...]
    final_payload: str | None
    finished: bool
    artifact: str | None = None
    final_thought: str = ""


class PrefixGate(Protocol):
    """A pure gate: format or invariance."""

    @property
    def name(self) -> str:
        """What its results are called."""
        ...

    def check(self, prefix: Prefix, suite: Suite) -> GateResult:
        """'passed' or 'failed' with the reason and the turn; never raises on any text."""
        ...
