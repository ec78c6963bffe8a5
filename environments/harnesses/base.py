"""The harness protocol: what drives the model through a task, meeting it only over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import httpx

from environments.sandboxes.base import Sandbox
from environments.suites.base import Suite
from environments.types import Status, TaskSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one rollout's model is: its own URL and capability key, so that no session id need be sent.

    `transport` is set when the recorder runs in process (ASGI); a harness that is its own process uses `base_url`.
    """

    base_url: str
    api_key: str
    model: str
    transport: httpx.AsyncBaseTransport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessOutcome:
    """How the harness ended. `turns` is empty when they must be rebuilt from the wire (external harnesses).

    `out_of_time`: the clock stopped a harness in the box; whose time that was the recording tells.
    """

    status: Status
    fault: str
    turns: tuple[Turn, ...]
    final_payload: str | None
    final_thought: str = ""
    out_of_time: bool = False


class Harness(Protocol):
    """Drives one rollout. Raises nothing for what the agent does; infra errors escape to the rollout loop."""

    name: str

    async def run(self, task: TaskSpec, *, suite: Suite, sandbox: Sandbox, endpoint: Endpoint) -> HarnessOutcome:
        """Work on the task until it is done, a budget is spent, or the agent broke the rules."""
        ...
