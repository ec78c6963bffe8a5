"""Claude Code, Codex, Qwen Code and opencode, unmodified, in a real box, through a scripted task.

`make test-harnesses` installs them into .harnesses and runs this. The readers of their output are tested without them.
That what they leave on record can train is tested in tests/test_harness_trains.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness_rooms import SUITE, one_rollout, replayed, room_for, says, worst_gap

from environments.harnesses.base import Endpoint
from environments.harnesses.command import CommandHarness
from environments.harnesses.equipment import url_in_box
from environments.harnesses.inside import Ended, HarnessNotReady, given_up
from environments.harnesses.specs import SPECS
from environments.suites.service_repair.suite import task_of
from environments.types import Limits

INSTALLED = Path(__file__).parents[3] / ".harnesses"
TASK = replace(task_of(seed=11, horizon=3), limits=Limits(max_turns=8, max_tokens=4000, wall_time_s=3000.0))
ANSWER = '{"answer": "done"}'


@pytest.mark.harness
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(SPECS))
async def test_it_mends_a_service_and_nothing_that_was_said_is_lost(name, long_folder, tmp_path):
    spec = SPECS[name]
    steps = SUITE.reference(TASK)
    texts = [*(says(s.thought, *spec.shell_call(s.command)) for s in steps), ANSWER]
    harness = CommandHarness(spec, INSTALLED / name)
    async with room_for(harness, replayed(long_folder, texts), tmp_path, max_tokens=2000) as (room, engine):
        trajectory = await one_rollout(room, TASK)
        assert (trajectory.status, trajectory.fault) == ("completed", "")
        assert await worst_gap(engine, trajectory) < 1e-4
    assert trajectory.final_payload == ANSWER
    assert [t.action for t in trajectory.turns] == [s.command for s in steps]
    assert "ok" in trajectory.turns[-1].observation
    assert [c.fork_cause for c in trajectory.chains if c.role == "main"] == ["root"]
    assert sum(c.num_trainable for c in trajectory.chains) == trajectory.usage.completion_tokens


def ended(stdout: str, *, exit_code: int = 0, stderr: str = "") -> Ended:
    return Ended(exit_code=exit_code, stdout=stdout, stderr=stderr)


CLAUDE = {"type": "result", "subtype": "success", "is_error": False, "result": ANSWER}
CODEX_MESSAGE = {"type": "item.completed", "item": {"type": "agent_message", "text": ANSWER}}
OPENCODE_TEXT = {"type": "text", "part": {"type": "text", "text": ANSWER}}


@pytest.mark.parametrize(
    ("name", "stdout"),
    [
        ("claude_code", json.dumps(CLAUDE)),
        ("codex", f"a notice\n{json.dumps(CODEX_MESSAGE)}\n" + '{"type": "turn.completed"}\n'),
        ("qwen_code", ANSWER + "\n"),
        ("opencode", json.dumps(OPENCODE_TEXT) + "\n"),
    ],
)
def test_an_answer_counts_only_where_the_agent_ended_well(name, stdout):
    read = SPECS[name].read
    word = read(ended(stdout))
    assert (word.ended_well, word.text) == (True, ANSWER)
    assert not read(ended(stdout, exit_code=1)).ended_well
    assert not read(ended("")).ended_well


@pytest.mark.parametrize(
    ("name", "stdout"),
    [
        ("claude_code", json.dumps({**CLAUDE, "is_error": True})),
        ("codex", json.dumps(CODEX_MESSAGE) + '\n{"type": "turn.failed", "error": {"message": "403"}}\n'),
        ("qwen_code", "[API Error: 403 budget_exhausted]"),
        ("opencode", json.dumps(OPENCODE_TEXT) + '\n{"type": "error", "error": {"name": "APIError"}}\n'),
    ],
)
def test_an_error_with_exit_code_0_is_no_answer(name, stdout):
    assert not SPECS[name].read(ended(stdout)).ended_well


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("API Error: 403 budget_exhausted: this rollout may make 9 calls", "budget_exhausted"),
        ("this model's maximum context length is 4096 tokens", "budget_exhausted"),
        ("Segmentation fault", "agent_fault"),
        ("", "agent_fault"),
    ],
)
def test_what_a_harness_says_of_its_end_is_never_made_a_fault_of_ours(said, status):
    assert given_up("codex", said, TASK).status == status


def test_the_endpoint_keeps_its_path_in_the_box():
    endpoint = Endpoint(base_url="http://localhost/r/g-0", api_key="k", model="policy")
    assert url_in_box(endpoint) == "http://127.0.0.1:8790/r/g-0"


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_agent_that_is_not_installed_or_of_another_version_is_refused_with_the_mend(name, tmp_path):
    spec = SPECS[name]
    with pytest.raises(HarnessNotReady, match=r"run infra/harnesses/install\.sh"):
        CommandHarness(spec, tmp_path)
    folder = tmp_path / "node_modules" / spec.package
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"version": "0.0.1"}')
    with pytest.raises(HarnessNotReady, match=r"0\.0\.1; want one that was tried"):
        CommandHarness(spec, tmp_path)
