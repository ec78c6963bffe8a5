"""Runs a harness as one process in the box, and says how it ended.

Before its first act whatever fails is ours, and is checked: the pinned version, that it starts in a box at all, that
the proxy answers. From then on the agent shares the box with its harness and could feign any ending there, so no file
or exit code in the box can make a fault ours: a broken engine or proxy is known from the recording alone.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from environments.faults import HARNESS_SHARE, of_command
from environments.harnesses.base import HarnessOutcome
from environments.harnesses.equipment import HOME, expect_proxy
from environments.sandboxes.base import Sandbox, SandboxError
from environments.types import Status, TaskSpec

FOLDER = f"{HOME}/.harness"
STDOUT, STDERR = f"{FOLDER}/stdout", f"{FOLDER}/stderr"
START_TIMEOUT_S = 300.0
TAIL_CHARS = 400
CONTEXT_PHRASES = ("context_length_exceeded", "maximum context length", "ContextWindowExceeded", "Prompt is too long")


class HarnessNotReady(SandboxError):
    """The harness cannot be used here: not installed, another version, or it does not start in a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One start of a harness: words, variables beside the box's own, and files (absolute path -> text)."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A harness that ended by itself."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def last_words(self) -> str:
        """The end of what it printed, on one line."""
        return " ".join((self.stderr + "\n" + self.stdout).split())[-TAIL_CHARS:]


class StartProof:
    """Shows once, in the first box, that a harness starts: every later box holds the very same files."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], want: str) -> None:
        self._command = command_line(Invocation(argv=argv, env=env))
        self._want = want
        self._lock = asyncio.Lock()
        self._shown = False

    async def show(self, sandbox: Sandbox) -> None:
        """Raises HarnessNotReady when it prints anything but the version that is wanted."""
        async with self._lock:
            if self._shown:
                return
            result = await sandbox.run(f"({self._command} </dev/null)", timeout_s=START_TIMEOUT_S)
            if result.exit_code != 0 or self._want not in result.output:
                raise HarnessNotReady(
                    f"`{self._command}` in a box: exit {result.exit_code}, {result.output.strip()[-TAIL_CHARS:]!r}; "
                    f"want version {self._want}; install it again (infra/harnesses/install.sh, or the extra `harness`)"
                )
            self._shown = True


def command_line(invocation: Invocation) -> str:
    """The invocation for a shell."""
    variables = [f"{name}={value}" for name, value in invocation.env.items()]
    return shlex.join(["env", *variables, *invocation.argv])


async def run_inside(sandbox: Sandbox, invocation: Invocation, task: TaskSpec) -> Ended | HarnessOutcome:
    """Start the harness and wait for it; an outcome when the box stopped it. Raises SandboxError when ours."""
    until = time.monotonic() + HARNESS_SHARE * task.limits.wall_time_s
    await expect_proxy(sandbox)
    for path, text in {**invocation.files, STDOUT: "", STDERR: ""}.items():
        await sandbox.put(path, text.encode(), mode=0o600)
    command = f"({command_line(invocation)} </dev/null >{STDOUT} 2>{STDERR})"
    result = await sandbox.run(command, timeout_s=max(0.0, until - time.monotonic()))
    fault = of_command(result)
    if fault is not None:
        return outcome(fault.status, fault.text)
    if result.exit_code is None:
        return HarnessOutcome(status="budget_exhausted", fault="", turns=(), final_payload=None, out_of_time=True)
    return Ended(exit_code=result.exit_code, stdout=await _text(sandbox, STDOUT), stderr=await _text(sandbox, STDERR))


async def _text(sandbox: Sandbox, path: str) -> str:
    """A file of the box, empty when the agent has removed it."""
    try:
        return (await sandbox.get(path)).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def outcome(status: Status, fault: str = "", payload: str | None = None, thought: str = "") -> HarnessOutcome:
    """An outcome whose turns are rebuilt from the wire."""
    return HarnessOutcome(status=status, fault=fault, turns=(), final_payload=payload, final_thought=thought)


def given_up(name: str, said: str, task: TaskSpec) -> HarnessOutcome:
    """The outcome of a harness that ended without an answer, by what it says of the reason."""
    if "budget_exhausted" in said:
        limits = task.limits
        return outcome("budget_exhausted", f"{limits.max_turns} turns or {limits.max_tokens} tokens used")
    if any(phrase in said for phrase in CONTEXT_PHRASES):
        return outcome("budget_exhausted", "context: the conversation outgrew the model's context")
    return outcome("agent_fault", f"{name} gave up: {said[-TAIL_CHARS:] or 'it said nothing'}")
