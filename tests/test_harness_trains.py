"""A harness trains: what an unmodified agent's rollouts left on record is judged, sampled, and takes one CISPO step.

The `forced` engine says a scripted text with the ids and log-probabilities that a tiny policy gives it. Of the two
rollouts of a group one mends the service and one looks and hands in, so that there is something to learn. The trainer,
which shares nothing with the engine but the weights, must find the recorded log-probabilities again.

mini-SWE-agent always runs; Claude Code, Codex, Qwen Code and opencode with `make test-harnesses`.
"""

from __future__ import annotations

import pydoc_data.topics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent
sys.path += [str(TESTS / "environments" / room) for room in ("harnesses", "polar")]

from fakes import long_context_shape  # noqa: E402
from harness_rooms import SUITE, answers, room_for, says  # noqa: E402

from environments.gates.judge import GateConfig, judge  # noqa: E402
from environments.harnesses.base import Harness  # noqa: E402
from environments.harnesses.command import CommandHarness  # noqa: E402
from environments.harnesses.mini_swe_agent import MiniSweAgent  # noqa: E402
from environments.harnesses.specs import SPECS  # noqa: E402
from environments.rollout import GroupRequest, roll_out_groups  # noqa: E402
from environments.sandboxes.bubblewrap import BubblewrapProvider  # noqa: E402
from environments.suites.service_repair.suite import task_of  # noqa: E402
from environments.types import Group, Judged, Limits  # noqa: E402
from infra.engines.base import Sampling  # noqa: E402
from infra.engines.forced import ForcedEngine  # noqa: E402
from infra.engines.local import LocalEngine, LocalSettings  # noqa: E402
from training.advantages import AdvantageConfig  # noqa: E402
from training.config import OptimizerConfig, TrainConfig  # noqa: E402
from training.losses.cispo import Cispo  # noqa: E402
from training.policy import build_policy  # noqa: E402
from training.samples import Sample, samples_from  # noqa: E402
from training.trainer import Trainer  # noqa: E402

INSTALLED = TESTS.parent / ".harnesses"
TASK = replace(task_of(seed=11, horizon=3), limits=Limits(max_turns=8, max_tokens=4000, wall_time_s=3000.0))
ANSWER = '{"answer": "done"}'
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{ANSWER}'"
SETTINGS = LocalSettings(num_slots=4, chunk_tokens=512)


@pytest.fixture(scope="session")
def long_policy(tmp_path_factory) -> Path:
    """An untrained policy that reads the long prompts of command-line agents in few tokens."""
    shape = long_context_shape(layers=1)
    folder = tmp_path_factory.mktemp("long") / "policy"
    return build_policy(folder, corpus=pydoc_data.topics.topics.values(), shape=shape, seed=0)


async def a_group(
    harness: Harness, scripts: Mapping[str, Sequence[str]], folder: Path, tmp_path: Path
) -> tuple[Group, list[Judged]]:
    """One group with a rollout for each of `scripts`, and its verdicts."""
    texts = {rollout_id: answers(said) for rollout_id, said in scripts.items()}
    engine = ForcedEngine(LocalEngine(folder, settings=SETTINGS), lambda r: texts[r.rollout_id](r))
    async with room_for(harness, engine, tmp_path, max_tokens=2000) as (room, _):
        request = GroupRequest(group_id="g", task=TASK, size=len(scripts))
        (group,) = await roll_out_groups([request], replace(room, concurrency=1, max_refills=0))
    states, boxes = room.log.states, BubblewrapProvider()
    judged = [await judge(m, TASK, SUITE, boxes, states[m.rollout_id], GateConfig()) for m in group.members]
    return group, judged


def worst_gap(samples: Sequence[Sample], again: Sequence[np.ndarray]) -> float:
    """The largest difference between a recorded log-probability and the trainer's, in nats."""
    pairs = zip(samples, again, strict=True)
    return max(float(np.abs(s.behaviour_logprobs - found)[s.loss_mask].max()) for s, found in pairs)


async def it_trains(harness: Harness, scripts: Mapping[str, Sequence[str]], folder: Path, tmp_path: Path) -> None:
    """Both rollouts are recorded whole, one passes and one fails, and the trainer moves the weights by them."""
    group, judged = await a_group(harness, scripts, folder, tmp_path)
    assert group.excluded == ()
    assert [(m.status, m.fault) for m in group.members] == [("completed", ""), ("completed", "")]
    assert [j.reward for j in judged] == [1.0, 0.0]
    main = [c for m in group.members for c in m.chains if c.role == "main"]
    assert [c.fork_cause for c in main] == ["root", "root"]
    assert [len(m.turns) for m in group.members] == [TASK.horizon, 1]

    batch = samples_from([group], {j.rollout_id: j for j in judged}, Sampling(), AdvantageConfig())
    assert sum(s.num_loss_tokens for s in batch.samples) == sum(c.num_trainable for c in main)
    assert {s.rollout_id: float(s.advantages.sum()) > 0 for s in batch.samples} == {"g-0": True, "g-1": False}

    sgd = OptimizerConfig(name="sgd", learning_rate=0.1)
    trainer = Trainer(folder, TrainConfig(loss=Cispo(), optimizer=sgd))
    before = trainer.logprobs(batch.samples)
    assert worst_gap(batch.samples, before) <= 1e-4
    report = trainer.train_step(batch.samples)
    assert (report.policy_version, report.num_loss_tokens) == (1, sum(c.num_trainable for c in main))
    assert report.ratio_max == pytest.approx(1.0, abs=1e-4)
    moves = zip(batch.samples, before, trainer.logprobs(batch.samples), strict=True)
    assert sum(float((s.advantages * (now - then)).sum()) for s, then, now in moves) > 0


async def test_mini_swe_agent_trains(long_policy, tmp_path):
    def bash(thought: str, command: str) -> str:
        return says(thought, "bash", {"command": command})

    steps = [bash(s.thought, s.command) for s in SUITE.reference(TASK)]
    hand_in = bash("It passes.", SUBMIT)
    await it_trains(MiniSweAgent(), {"g-0": [*steps, hand_in], "g-1": [steps[0], hand_in]}, long_policy, tmp_path)


@pytest.mark.harness
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(SPECS))
async def test_a_command_line_agent_trains(name, long_policy, tmp_path):
    spec = SPECS[name]
    steps = [says(s.thought, *spec.shell_call(s.command)) for s in SUITE.reference(TASK)]
    harness = CommandHarness(spec, INSTALLED / name)
    await it_trains(harness, {"g-0": [*steps, ANSWER], "g-1": [steps[0], ANSWER]}, long_policy, tmp_path)
