"""Error classes of turns that were read off the wire: the suite's word, as for turns of our own."""

from __future__ import annotations

from dataclasses import replace

from fake_records import a_turn

from environments.harnesses.error_classes import classed
from environments.suites.service_repair.suite import ServiceRepair

LISTED = a_turn(
    source="wire",
    action="cat nothing",
    observation="cat: nothing: No such file or directory\n[exit 1]",
    exit_code=1,
)


def test_wire_turns_are_classed_as_those_of_our_own_harness_are():
    turns = (
        LISTED,
        LISTED,
        replace(LISTED, agent_id="helper"),
        replace(LISTED, action="./check", observation="port is wrong\n[exit 1]"),
        replace(LISTED, action="sleep 99", observation="[timed out]", exit_code=None),
        replace(LISTED, action="frob", observation="bash: line 1: frob: command not found", exit_code=127),
        replace(LISTED, action="ls", observation="check", exit_code=None),
        replace(LISTED, action="<tool_call>", error_class="parse"),
    )
    assert [t.error_class for t in classed(turns, ServiceRepair())] == [
        "exit_code",
        "repeat",
        "exit_code",
        None,
        "timeout",
        "exit_code",
        None,
        "parse",
    ]
