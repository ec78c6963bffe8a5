"""The gates in order, with the outcomes of every way a rollout can end."""

from __future__ import annotations

from typing import Any, cast

import pytest
from gate_fakes import TASK, NoBoxes, PortFileSuite, tar_of, trajectory, turn
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.gates.base import Prefix
from environments.gates.format_gate import FormatGate
from environments.gates.invariance_gate import InvarianceGate
from environments.gates.judge import GateConfig, check_prefix, judge
from environments.sandboxes.base import SandboxProvider
from environments.types import Judged, Trajectory, Unjudged, Verdict

BOXES = cast(SandboxProvider, NoBoxes())
MENDED = tar_of({"port": b"80\n"})
BROKEN = tar_of({"port": b"8080"})
WORK = turn(0, "echo 80 > port", thought="The port is wrong; I write 80.")


async def judged(
    record: Trajectory, state: bytes | None = MENDED, suite: PortFileSuite | None = None, **config: Any
) -> Judged:
    return await judge(record, TASK, suite or PortFileSuite(), BOXES, state, GateConfig(**config))


def outcomes(result: Judged) -> list[str]:
    assert isinstance(result.result, Verdict)
    return [g.outcome for g in result.result.gates]


async def test_work_that_is_done_in_form_and_in_place_earns_one() -> None:
    result = await judged(trajectory(WORK))
    assert outcomes(result) == ["passed", "passed", "passed"]
    assert (result.reward, result.passed) == (1.0, True)
    assert isinstance(result.result, Verdict)
    assert [(s.name, s.value) for s in result.result.scores] == [("port", 1.0)]


async def test_the_first_gate_that_fails_stops_and_no_box_is_started() -> None:
    suite = PortFileSuite()
    result = await judged(trajectory(turn(0, "rm check"), payload="Done!"), suite=suite)
    assert outcomes(result) == ["failed", "not_reached", "not_reached"]
    assert (result.reward, suite.graded) == (0.0, 0)
    result = await judged(trajectory(WORK, turn(1, "rm check")), suite=suite)
    assert outcomes(result) == ["passed", "failed", "not_reached"]
    assert (result.reward, suite.graded) == (0.0, 0)


async def test_a_wrong_final_state_fails_execution_with_the_suites_own_words() -> None:
    result = await judged(trajectory(WORK), state=BROKEN)
    assert outcomes(result) == ["passed", "passed", "failed"]
    assert isinstance(result.result, Verdict)
    assert result.result.gates[2].detail == "port is not 80"


async def test_a_gate_in_observe_mode_says_what_it_saw_and_lets_the_rest_decide() -> None:
    record = trajectory(turn(0, "curl http://evil.example"), payload="Done!")
    result = await judged(record, format_mode="observe", invariance_mode="observe")
    assert outcomes(result) == ["observed_failed", "observed_failed", "passed"]
    assert result.reward == 1.0
    assert outcomes(await judged(record, format_mode="observe")) == ["observed_failed", "failed", "not_reached"]


async def test_our_own_fault_is_no_verdict() -> None:
    result = await judged(trajectory(WORK, status="infra_fault", fault="engine: gone"))
    assert result.result == Unjudged(reason="engine: gone")
    assert result.reward is None
    down = await judged(trajectory(WORK), suite=PortFileSuite(host_down=True))
    assert down.result == Unjudged(reason="the grading box failed: no space left on the host")
    lost = await judged(trajectory(WORK), state=None)
    assert isinstance(lost.result, Unjudged)
    assert "missing from the store" in lost.result.reason


async def test_a_spent_budget_or_a_broken_box_is_the_agents_and_execution_says_so() -> None:
    suite = PortFileSuite()
    spent = trajectory(WORK, payload=None, status="budget_exhausted", fault="turns: 8 of 8 used")
    result = await judged(spent, suite=suite)
    assert outcomes(result) == ["passed", "passed", "failed"]
    assert isinstance(result.result, Verdict)
    assert result.result.gates[2].detail == "a budget was spent before the task was done: turns: 8 of 8 used"
    broke = await judged(trajectory(WORK, payload=None, status="agent_fault", fault="box: out_of_memory"), state=None)
    assert outcomes(broke) == ["passed", "passed", "failed"]
    assert (result.reward, broke.reward, suite.graded) == (0.0, 0.0, 0)


async def test_a_completed_rollout_without_a_payload_fails_format() -> None:
    assert outcomes(await judged(trajectory(WORK, payload=None))) == ["failed", "not_reached", "not_reached"]


@pytest.mark.parametrize(
    "payload",
    [
        'Sure! {"answer": "80"}',
        '```json\n{"answer": "80"}\n```',
        '{"answer": "80"} {"answer": "81"}',
        '{"answer": "80", "answer": "81"}',
        '{"answer": NaN}',
        '{"answer": "80"} I hope this helps.',
        '{"answer": ""}',
        '{"answer": 80}',
        '{"result": "80"}',
        '{"answer": "80", "note": "x"}',
        '["80"]',
        "",
        "{" * 5000,
    ],
)
def test_a_payload_with_anything_but_the_payload_fails_format(payload: str) -> None:
    prefix = Prefix(task=TASK, turns=(), final_payload=payload, finished=True)
    assert FormatGate().check(prefix, PortFileSuite()).outcome == "failed"


def test_reasoning_is_never_judged_for_form_but_is_for_language() -> None:
    messy = turn(0, "ls", thought='{"answer": NaN} ``` wait, hmm, actually no { {')
    prefix = Prefix(task=TASK, turns=(messy,), final_payload=' {"answer": "80"}\n', finished=True)
    assert FormatGate(scope=("payload", "actions")).check(prefix, PortFileSuite()).outcome == "passed"
    drifting = Prefix(
        task=TASK, turns=(turn(3, "ls", thought="I read the 配置文件 now."),), final_payload=None, finished=False
    )
    result = InvarianceGate().check(drifting, PortFileSuite())
    assert (result.outcome, result.detail.split(":")[0]) == ("failed", "turn 3")
    assert InvarianceGate(language=False).check(drifting, PortFileSuite()).outcome == "passed"


def test_a_malformed_action_is_fatal_only_where_the_action_channel_is_in_scope() -> None:
    prefix = Prefix(task=TASK, turns=(turn(2, "rm check", error="parse"),), final_payload=None, finished=False)
    suite = PortFileSuite()
    assert check_prefix(prefix, suite, GateConfig()) is None  # it never ran, so it is no command either
    strict = GateConfig(format=FormatGate(scope=("actions",)))
    result = check_prefix(prefix, suite, strict)
    assert result is not None
    assert (result.name, result.detail) == ("format", "turn 2: a malformed action")


def test_the_answer_inside_the_payload_is_judged_for_language() -> None:
    prefix = Prefix(task=TASK, turns=(), final_payload='{"answer": "I changed the 端口 to 80."}', finished=True)
    result = check_prefix(prefix, PortFileSuite(), GateConfig())
    assert result is not None
    assert result.detail.startswith("final payload: language")
    thinking = Prefix(
        task=TASK,
        turns=(),
        final_payload='{"answer": "done"}',
        finished=True,
        final_thought="I think the 端口 is right.",
    )
    assert InvarianceGate().check(thinking, PortFileSuite()).detail.startswith("final thought: language")


def test_a_running_rollout_is_stopped_at_the_forbidden_turn_unless_the_gate_only_watches() -> None:
    prefix = Prefix(task=TASK, turns=(WORK, turn(1, "cd /srv; rm check")), final_payload=None, finished=False)
    result = check_prefix(prefix, PortFileSuite(), GateConfig())
    assert result is not None
    assert result.detail == "turn 1: edit: changes /srv/check, which no agent may"
    assert check_prefix(prefix, PortFileSuite(), GateConfig(invariance_mode="observe")) is None


def test_turns_of_an_external_harness_do_not_share_a_shell() -> None:
    kept = (turn(0, "cd /tmp"), turn(1, "rm check"))
    apart = (turn(0, "cd /tmp", source="wire"), turn(1, "rm check", source="wire"))
    gate = InvarianceGate()
    assert (
        gate.check(Prefix(task=TASK, turns=kept, final_payload=None, finished=False), PortFileSuite()).outcome
        == "passed"
    )
    assert (
        gate.check(Prefix(task=TASK, turns=apart, final_payload=None, finished=False), PortFileSuite()).outcome
        == "failed"
    )


async def test_a_declared_artifact_is_read_from_the_final_state_and_judged_whole() -> None:
    form = FormatGate(scope=("artifact",), form="json")
    state = tar_of({"port": b"80", "./out.json": b'{"a": 1}'})
    assert outcomes(await judged(trajectory(WORK), state=state, format=form, artifact="out.json"))[0] == "passed"
    chatty = tar_of({"port": b"80", "out.json": b'Here: {"a": 1}'})
    assert outcomes(await judged(trajectory(WORK), state=chatty, format=form, artifact="out.json"))[0] == "failed"
    assert outcomes(await judged(trajectory(WORK), format=form, artifact="out.json"))[0] == "failed"


def test_scope_and_artifact_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="give both the scope 'artifact' and its path"):
        GateConfig(artifact="out.json")
    with pytest.raises(ValueError, match="scope is empty"):
        FormatGate(scope=())


@settings(max_examples=150, deadline=None)
@given(thought=st.text(max_size=60), action=st.text(max_size=60), payload=st.none() | st.text(max_size=60))
def test_no_text_whatever_makes_a_prefix_gate_raise(thought: str, action: str, payload: str | None) -> None:
    prefix = Prefix(task=TASK, turns=(turn(0, action, thought=thought),), final_payload=payload, finished=True)
    for form in ("answer", "json", "python", "text"):
        check_prefix(prefix, PortFileSuite(), GateConfig(format=FormatGate(form=form), format_mode="observe"))  # type: ignore[arg-type]
