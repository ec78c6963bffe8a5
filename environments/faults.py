"""Whose fault: the one table from what went wrong to a status. Status is never reward.

Ours (`infra_fault`): proxy, engine, daemon, host, store, wall time. No reward, no gradient, no evidence, refill.
The agent's (`agent_fault`, `budget_exhausted`): what it did to its box within the stated limits, its turn, token,
context and box-time budgets, forbidden acts. Reward 0, and it trains. Nothing an agent can do inside its box may
become ours. An exception that is in no row is a bug: it escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import httpx

from environments.polar.errors import LogFailed
from environments.sandboxes.base import BoxFault, CommandResult, SandboxError
from environments.types import GateResult, Limits, Status
from infra.engines.base import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How a rollout ends: its status, and the text for `Trajectory.fault`."""

    status: Status
    text: str


INFRA_ERRORS: tuple[type[Exception], ...] = (SandboxError, EngineError, LogFailed, httpx.TransportError, OSError)
"""What the rollout loop catches and classifies, once. (TimeoutError is an OSError; asyncio's is the same.)"""

_INFRA_NAMES: tuple[tuple[type[Exception], str], ...] = (
    (SandboxError, "sandbox"),
    (EngineError, "engine"),
    (LogFailed, "call log"),
    (httpx.TransportError, "proxy"),
    (TimeoutError, "host: wall time"),
    (OSError, "host"),
)

BOX_FAULTS: dict[BoxFault, Status | None] = {
    "out_of_memory": "agent_fault",
    "shell_killed": "agent_fault",
    "disk_full": "agent_fault",
    "process_limit": "agent_fault",
    "output_limit": None,  # the rest is cut and said; the agent goes on
}

BudgetName = Literal["turns", "tokens", "context", "box time"]
BOX_TIME_SHARE = 0.5
HARNESS_SHARE = 0.9
"""A harness in the box is stopped at this share of the wall time: what it left must still be fetched within it."""


def of_exception(error: Exception) -> Fault:
    """An infrastructure error as an infra fault. Raises the error itself when it is in no row: that is a bug."""
    for kind, name in _INFRA_NAMES:
        if isinstance(error, kind):
            return Fault(status="infra_fault", text=f"{name}: {type(error).__name__}: {error}")
    raise error


def of_command(result: CommandResult) -> Fault | None:
    """What a command did to its box, None when the rollout goes on. A command's own timeout is an observation."""
    status = BOX_FAULTS[result.fault] if result.fault is not None else None
    return Fault(status=status, text=f"box: {result.fault}") if status is not None else None


def of_budget(name: BudgetName, *, used: int, limit: int) -> Fault:
    """A budget that is spent."""
    return Fault(status="budget_exhausted", text=f"{name}: {used} of {limit} used")


def of_box_time(used_s: float, limits: Limits) -> Fault | None:
    """The agent's commands have run for half of the wall time: its own budget, None below that.

    Without this row an agent that sleeps could run the host's clock out and have its failure called ours.
    """
    allowed_s = BOX_TIME_SHARE * limits.wall_time_s
    return of_budget("box time", used=round(used_s), limit=round(allowed_s)) if used_s >= allowed_s else None


def of_wall_time(model_s: float, limits: Limits) -> Fault:
    """A harness in the box was stopped by the clock: the agent's budget, unless the model took the time (seconds).

    The time that no call was open is the agent's: its commands' and its harness's own.
    """
    box_s = HARNESS_SHARE * limits.wall_time_s - model_s
    spent = of_box_time(box_s, limits)
    said = f"host: wall time: calls of the model took {model_s:.0f} of {limits.wall_time_s:.0f} s"
    return spent or Fault(status="infra_fault", text=said)


def of_gate(result: GateResult) -> Fault | None:
    """A gate that stopped a running rollout, None when it passed."""
    if result.outcome != "failed":
        return None
    return Fault(status="agent_fault", text=f"{result.name}: {result.detail}")
