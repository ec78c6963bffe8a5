"""The built-in harness: ask, act, observe, until the agent answers.

It meets the model over OpenAI chat completions like any other harness, so what trains here is what would train
under an external one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from environments.actions import BASH_TOOL, ActionError, parse_command
from environments.faults import of_box_time, of_command, of_gate
from environments.gates.base import Prefix
from environments.harnesses.base import Endpoint, HarnessOutcome
from environments.harnesses.error_classes import ErrorClasses
from environments.sandboxes.base import CommandResult, Sandbox
from environments.suites.base import Suite
from environments.types import GateResult, Status, TaskSpec, Turn
from infra.engines.base import EngineError

SYSTEM_PROMPT = 'Work in a shell. Call bash, one command a turn. When done, reply {"answer": "done"}.'
PrefixCheck = Callable[[Prefix, Suite], GateResult | None]


class ModelUnavailable(EngineError):
    """The model's endpoint failed. Ours, never the agent's."""


def render_observation(result: CommandResult) -> str:
    """What the agent reads after a command: its output, then what else it must know, one line each."""
    lines = [result.output.rstrip("\n")] if result.output.strip() else []
    if result.truncated:
        lines.append("[output cut]")
    if result.timed_out:
        lines.append("[timed out]")
    elif result.exit_code:
        lines.append(f"[exit {result.exit_code}]")
    return "\n".join(lines) or "[exit 0]"


@dataclass
class _Run:
    """The state of one rollout: the messages sent and the turns taken."""

    task: TaskSpec
    suite: Suite
    sandbox: Sandbox
    client: httpx.AsyncClient
    endpoint: Endpoint
    messages: list[dict[str, Any]]
    turns: list[Turn] = field(default_factory=list)
    errors: ErrorClasses = field(init=False)

    def __post_init__(self) -> None:
        self.errors = ErrorClasses(self.suite)

    def outcome(self, status: Status, fault: str = "", payload: str | None = None, thought: str = "") -> HarnessOutcome:
        return HarnessOutcome(
            status=status, fault=fault, turns=tuple(self.turns), final_payload=payload, final_thought=thought
        )


class ToolLoop:
    """Asks the model, runs its one command, shows the result. `check` may end a rollout early (gates 1 and 2)."""

    name = "tool_loop"

    def __init__(self, *, check: PrefixCheck | None = None, command_timeout_s: float = 20.0) -> None:
        self._check = check
        self._command_timeout_s = command_timeout_s

    async def run(self, task: TaskSpec, *, suite: Suite, sandbox: Sandbox, endpoint: Endpoint) -> HarnessOutcome:
        """See `Harness.run`. Raises ModelUnavailable and SandboxError: both are ours."""
        messages = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": task.instruction},
        ]
        async with httpx.AsyncClient(transport=endpoint.transport, timeout=None) as client:
            run = _Run(task, suite, sandbox, client, endpoint, messages)
            while len(run.turns) < task.limits.max_turns:
                outcome = await self._step(run)
                if outcome is not None:
                    return outcome
            return run.outcome("budget_exhausted", f"{task.limits.max_turns} turns used")

    async def _step(self, run: _Run) -> HarnessOutcome | None:
        message, finish_reason, call_id = await _ask(run)
        if message is None:
            return run.outcome("budget_exhausted", "tokens or calls used up")
        thought = message.get("reasoning_content") or ""
        calls = message.get("tool_calls") or []
        content = (message.get("content") or "").strip()
        if not calls and finish_reason != "length" and "<tool_call>" not in content:
            return run.outcome("completed", payload=content, thought=thought)
        run.messages.append(_echo(message))
        try:
            if len(calls) != 1:
                raise ActionError(_what_is_wrong(calls, finish_reason))
            command = parse_command(calls[0]["function"]["arguments"])
        except ActionError as error:
            turn = _malformed(run, call_id, thought, calls[0]["function"]["arguments"] if calls else content, error)
            _observe(run, turn, calls, turn.observation)
            return self._gate(run)
        turn, result = await self._act(run, call_id, calls[0]["id"], thought, command)
        _observe(run, turn, calls, turn.observation)
        fault = of_command(result) or of_box_time(sum(t.duration_s for t in run.turns), run.task.limits)
        if fault is not None:
            return run.outcome(fault.status, fault.text)
        return self._gate(run)

    async def _act(
        self, run: _Run, call_id: str, tool_call_id: str, thought: str, command: str
    ) -> tuple[Turn, CommandResult]:
        result = await run.sandbox.run(command, timeout_s=self._command_timeout_s)
        error = run.errors.of(command, result)
        turn = Turn(
            index=len(run.turns),
            call_id=call_id,
            tool_call_id=tool_call_id,
            agent_id="main",
            source="sandbox",
            thought=thought,
            action=command,
            observation=render_observation(result),
            exit_code=result.exit_code,
            error_class=error,
            duration_s=result.duration_s,
        )
        return turn, result

    def _gate(self, run: _Run) -> HarnessOutcome | None:
        if self._check is None:
            return None
        prefix = Prefix(task=run.task, turns=tuple(run.turns), final_payload=None, finished=False)
        failed = self._check(prefix, run.suite)
        fault = of_gate(failed) if failed is not None else None
        return None if fault is None else run.outcome(fault.status, fault.text)


async def _ask(run: _Run) -> tuple[Mapping[str, Any] | None, str, str]:
    """One call: (message, finish reason, call id); message None when the budget is spent."""
    response = await run.client.post(
        f"{run.endpoint.base_url}/chat/completions",
        headers={"Authorization": f"Bearer {run.endpoint.api_key}"},
        json={"model": run.endpoint.model, "messages": run.messages, "tools": [BASH_TOOL]},
    )
    if response.status_code != 200:
        error = _error_of(response)
        if error.get("code") == "budget_exhausted":
            return None, "budget", ""
        raise ModelUnavailable(f"the model's endpoint answered {response.status_code}: {error.get('message')}")
    body = response.json()
    choice = body["choices"][0]
    return choice["message"], choice["finish_reason"], body["id"]


def _error_of(response: httpx.Response) -> Mapping[str, Any]:
    try:
        error = response.json().get("error", {})
    except ValueError:
        return {"message": response.text[:200]}
    return error if isinstance(error, dict) else {"message": str(error)}


def _echo(message: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant message as the next request carries it."""
    kept = ("role", "content", "reasoning_content", "tool_calls")
    return {key: message[key] for key in kept if message.get(key) is not None}


def _what_is_wrong(calls: list[Any], finish_reason: str) -> str:
    if finish_reason == "length":
        return "the reply was cut: it is too long"
    return f"want one bash call a turn, got {len(calls)}"


def _malformed(run: _Run, call_id: str, thought: str, action: str, error: ActionError) -> Turn:
    return Turn(
        index=len(run.turns),
        call_id=call_id,
        tool_call_id="",
        agent_id="main",
        source="sandbox",
        thought=thought,
        action=action,
        observation=f"error: {error}",
        exit_code=None,
        error_class="parse",
        duration_s=0.0,
    )


def _observe(run: _Run, turn: Turn, calls: list[Any], text: str) -> None:
    """Append the turn and show its observation: as tool results where there were calls, else as the user's word."""
    run.turns.append(turn)
    if not calls:
        run.messages.append({"role": "user", "content": text})
    for call in calls:
        run.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
