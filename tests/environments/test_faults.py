"""The fault table: whose fault is it."""

from __future__ import annotations

from typing import get_args

import httpx
import pytest

from environments.faults import (
    BOX_FAULTS,
    INFRA_ERRORS,
    Fault,
    of_box_time,
    of_budget,
    of_command,
    of_exception,
    of_gate,
    of_wall_time,
)
from environments.polar.errors import LogFailed
from environments.sandboxes.base import BoxFault, CommandResult, SandboxError
from environments.types import GateResult, Limits
from infra.engines.base import EngineError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SandboxError("daemon gone"), "sandbox: SandboxError: daemon gone"),
        (EngineError("out of pages"), "engine: EngineError: out of pages"),
        (LogFailed("free some space"), "call log: LogFailed: free some space"),
        (httpx.ConnectError("refused"), "proxy: ConnectError: refused"),
        (httpx.ReadTimeout("slow"), "proxy: ReadTimeout: slow"),
        (TimeoutError("60 s"), "host: wall time: TimeoutError: 60 s"),
        (OSError(28, "No space left on device"), "host: OSError: [Errno 28] No space left on device"),
    ],
)
def test_what_breaks_around_the_agent_is_ours(error: Exception, text: str) -> None:
    assert isinstance(error, INFRA_ERRORS)
    assert of_exception(error) == Fault(status="infra_fault", text=text)


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")])
def test_an_error_in_no_row_is_a_bug_and_escapes(error: Exception) -> None:
    assert not isinstance(error, INFRA_ERRORS)
    with pytest.raises(type(error)):
        of_exception(error)


def test_every_box_fault_has_a_row_and_none_is_ours() -> None:
    assert set(BOX_FAULTS) == set(get_args(BoxFault))
    assert "infra_fault" not in BOX_FAULTS.values()


@pytest.mark.parametrize("fault", ["out_of_memory", "shell_killed", "disk_full", "process_limit"])
def test_what_an_agent_does_to_its_box_is_the_agents(fault: BoxFault) -> None:
    result = CommandResult(exit_code=None, output="", timed_out=False, truncated=False, duration_s=1.0, fault=fault)
    assert of_command(result) == Fault(status="agent_fault", text=f"box: {fault}")


def test_a_slow_or_talkative_command_does_not_end_the_rollout() -> None:
    slow = CommandResult(exit_code=None, output="", timed_out=True, truncated=False, duration_s=30.0)
    loud = CommandResult(exit_code=0, output="y", timed_out=False, truncated=True, duration_s=1.0, fault="output_limit")
    assert of_command(slow) is None
    assert of_command(loud) is None


def test_a_spent_budget_is_the_agents() -> None:
    assert of_budget("turns", used=5, limit=5) == Fault(status="budget_exhausted", text="turns: 5 of 5 used")
    assert of_budget("context", used=4100, limit=4096).status == "budget_exhausted"


def test_an_agent_that_sleeps_runs_out_of_its_own_time_before_the_hosts() -> None:
    limits = Limits(max_turns=5, max_tokens=100, wall_time_s=60.0)
    assert of_box_time(29.9, limits) is None
    assert of_box_time(30.0, limits) == Fault(status="budget_exhausted", text="box time: 30 of 30 used")


def test_the_clock_is_the_agents_unless_the_model_took_the_time() -> None:
    limits = Limits(max_turns=5, max_tokens=100, wall_time_s=60.0)
    assert of_wall_time(0.0, limits) == Fault(status="budget_exhausted", text="box time: 54 of 30 used")
    assert of_wall_time(24.0, limits).status == "budget_exhausted"
    slow = Fault(status="infra_fault", text="host: wall time: calls of the model took 30 of 60 s")
    assert of_wall_time(30.0, limits) == slow


def test_a_forbidden_act_is_the_agents() -> None:
    failed = GateResult(name="invariance", outcome="failed", detail="turn 2: network: curl")
    assert of_gate(failed) == Fault(status="agent_fault", text="invariance: turn 2: network: curl")
    assert of_gate(GateResult(name="invariance", outcome="passed")) is None
