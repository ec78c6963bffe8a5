"""Unmodified mini-SWE-agent, in a real box, carried through a task by a policy that says what it is told to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness_rooms import SUITE, forced, one_rollout, room_for, says, worst_gap
from transformers import AutoTokenizer

from environments.gates.judge import GateConfig, judge
from environments.harnesses.equipped_boxes import EquippedBoxes, boxes_for
from environments.harnesses.inside import HarnessNotReady
from environments.harnesses.mini_swe_agent import TOOL_LOOP, MiniSweAgent
from environments.harnesses.tool_loop import ToolLoop
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.suites.service_repair.suite import task_of
from environments.types import Limits
from training.samples import sample_from_chain

# Wall time guards the host and proves nothing here, so a crowded machine may take its time.
TASK = task_of(seed=11, horizon=3)
TASK = replace(TASK, limits=replace(TASK.limits, wall_time_s=3000.0))
HAND_IN = 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo \'{"answer": "done"}\''


@pytest.fixture(scope="module")
def harness():
    return MiniSweAgent()


def bash(thought: str, command: str) -> str:
    return says(thought, "bash", {"command": command})


async def test_it_mends_a_service_and_every_token_it_sampled_can_train(harness, short_folder, tmp_path):
    steps = SUITE.reference(TASK)
    texts = [*(bash(s.thought, s.command) for s in steps), bash("It passes, so I hand it in.", HAND_IN)]
    async with room_for(harness, forced(short_folder, texts), tmp_path) as (room, engine):
        trajectory = await one_rollout(room, TASK)
        assert (trajectory.status, trajectory.fault) == ("completed", "")
        assert await worst_gap(engine, trajectory) < 1e-4
    assert trajectory.final_payload == '{"answer": "done"}'
    assert trajectory.final_thought == "It passes, so I hand it in."
    assert [t.action for t in trajectory.turns] == [s.command for s in steps]
    assert trajectory.turns[-1].observation == "ok"
    (chain,) = trajectory.chains
    assert (chain.role, chain.fork_cause, trajectory.usage.calls) == ("main", "root", 4)
    assert chain.num_trainable == trajectory.usage.completion_tokens
    sample = sample_from_chain(chain, "g", 1.0, 1.0, 1.0)
    assert sum(sample.loss_mask) == chain.num_trainable
    state = room.log.states[trajectory.rollout_id]
    judged = await judge(trajectory, TASK, SUITE, final_state=state, boxes=room.boxes, config=GateConfig())
    assert (judged.passed, judged.reward) == (True, 1.0)


async def chains_under(harness, texts, folder, tmp_path):
    async with room_for(harness, forced(folder, texts), tmp_path) as (room, _):
        trajectory = await one_rollout(room, TASK)
    assert (trajectory.status, trajectory.final_payload) == ("completed", '{"answer": "done"}')
    assert trajectory.final_thought == "It passes."
    return [[(s.ids, s.trainable) for s in chain.segments] for chain in trajectory.chains], trajectory.turns


async def test_minis_python_api_reads_and_says_the_tokens_that_its_command_does(short_folder, tmp_path):
    texts = [*(bash(s.thought, s.command) for s in SUITE.reference(TASK)), bash("It passes.", HAND_IN)]
    command, turns = await chains_under(MiniSweAgent(), texts, short_folder, tmp_path / "command")
    api, api_turns = await chains_under(MiniSweAgent(python_api=True), texts, short_folder, tmp_path / "api")
    assert api == command
    assert [(t.action, t.observation) for t in api_turns] == [(t.action, t.observation) for t in turns]


async def test_turns_that_are_used_up_end_a_program_over_minis_python_api(short_folder, tmp_path):
    task = replace(TASK, limits=Limits(max_turns=1, max_tokens=4000, wall_time_s=3000.0))
    texts = [bash("Look.", "cat check")] * 4
    async with room_for(MiniSweAgent(python_api=True), forced(short_folder, texts), tmp_path) as (room, _):
        trajectory = await one_rollout(room, task)
    assert (trajectory.status, trajectory.fault) == ("budget_exhausted", "1 turns used")


async def test_a_policy_that_knows_only_the_tool_loop_reads_and_says_the_same_tokens_under_mini(short_folder, tmp_path):
    steps = SUITE.reference(TASK)
    texts = [*(bash(s.thought, s.command) for s in steps), '<think>\nIt passes.\n</think>\n\n{"answer": "done"}']
    ours, our_turns = await chains_under(ToolLoop(), texts, short_folder, tmp_path / "ours")
    theirs, turns = await chains_under(MiniSweAgent(template=TOOL_LOOP), texts, short_folder, tmp_path / "theirs")
    assert theirs == ours
    told = [[(t.thought, t.action, t.observation, t.error_class) for t in some] for some in (our_turns, turns)]
    assert told[0] == told[1]


@pytest.mark.parametrize("cut", ["<tool_call>\n{oops\n</tool_call>", '{"answer": "done' * 40])
async def test_a_malformed_call_or_a_cut_reply_hands_nothing_in(cut, short_folder, tmp_path):
    harness = MiniSweAgent(template=TOOL_LOOP)
    async with room_for(harness, forced(short_folder, [cut]), tmp_path, max_tokens=60) as (room, _):
        trajectory = await one_rollout(room, TASK)
    assert (trajectory.status, trajectory.final_payload) == ("agent_fault", None)


async def test_the_token_budget_ends_it_and_a_malformed_call_is_an_error_that_it_reads(harness, short_folder, tmp_path):
    task = replace(TASK, limits=Limits(max_turns=8, max_tokens=70, wall_time_s=3000.0))
    texts = [says("So?", "bash", {"cmd": "ls"}), bash("Again.", "ls"), bash("Look.", "cat check")]
    async with room_for(harness, forced(short_folder, texts), tmp_path) as (room, _):
        trajectory = await one_rollout(room, task)
    assert (trajectory.status, trajectory.fault) == ("budget_exhausted", "8 turns or 70 tokens used")
    # It drops the malformed message from its history, so what follows is a chain of its own; both train.
    first, second, *_ = trajectory.chains
    assert (first.fork_cause, second.role) == ("root", "main")
    told = AutoTokenizer.from_pretrained(short_folder).decode([i for s in second.segments for i in s.ids])
    assert "error: Missing 'command' argument in bash tool call." in told
    assert sum(c.num_trainable for c in trajectory.chains) == trajectory.usage.completion_tokens
    refused, listed, *_ = trajectory.turns
    assert (refused.action, refused.error_class) == ('bash {"cmd": "ls"}', "parse")
    assert refused.observation.startswith("error: Missing 'command' argument in bash tool call.")
    assert (listed.action, listed.error_class) == ("ls", None)
    assert trajectory.final_payload is None


async def test_a_box_without_a_way_to_the_proxy_is_ours(harness, short_folder, tmp_path):
    async with room_for(harness, forced(short_folder, []), tmp_path) as (room, _):
        nowhere = EquippedBoxes(BubblewrapProvider(), harness.equipment, tmp_path / "nobody.sock")
        trajectory = await one_rollout(replace(room, boxes=nowhere), TASK)
    assert trajectory.status == "infra_fault"
    assert "the box cannot reach the proxy" in trajectory.fault


async def test_a_harness_of_our_own_process_keeps_its_boxes():
    boxes = BubblewrapProvider()
    async with boxes_for(ToolLoop(), boxes, None) as given:
        assert given is boxes


def test_another_version_is_refused_with_the_mend(tmp_path):
    (tmp_path / "mini_swe_agent-1.0.dist-info").mkdir()
    (tmp_path / "mini_swe_agent-1.0.dist-info" / "METADATA").write_text("Name: mini-swe-agent\nVersion: 1.0\n")
    with pytest.raises(HarnessNotReady, match=r"has mini-swe-agent 1\.0; want 2\.4\.6"):
        MiniSweAgent(site=tmp_path)
