"""Behaviour rates, and runs made from the record."""

from __future__ import annotations

import pytest
from evaluation_fakes import run

from environments.types import (
    Chain,
    Judged,
    Limits,
    Segment,
    TaskSpec,
    Trajectory,
    Turn,
    Unjudged,
    Usage,
    Verdict,
)
from training.evaluation.behaviour import ActKind, measure_behaviour
from training.evaluation.runs import runs_of


def act_kind(command: str) -> ActKind:
    return {"ls": "inspect", "./check": "verify", "sed": "mend"}.get(command, "other")  # type: ignore[return-value]


def test_verifying_counts_only_after_the_last_mend() -> None:
    runs = [
        run("...", task_id="a", actions=("ls", "sed", "./check")),
        run("...", task_id="b", actions=("./check", "sed", "ls")),
        run("..", task_id="c", actions=("ls", "./check")),
        run("..", task_id="d", actions=("sed", "./check"), finished=False),
    ]
    found = measure_behaviour(runs, act_kind)
    assert found.verify_before_finish is not None
    assert found.verify_before_finish.mean == pytest.approx(2 / 3)
    assert found.verify_before_finish.n == 3
    assert found.inspect_after_error is None


def test_looking_after_an_error_counts_the_very_next_turn() -> None:
    runs = [run("x.x.", task_id="a", actions=("sed", "ls", "sed", "sed")), run("..x", task_id="b")]
    found = measure_behaviour(runs, act_kind)
    assert found.inspect_after_error is not None
    assert found.inspect_after_error.mean == pytest.approx(1 / 2)


def test_runs_are_made_of_judged_rollouts_with_the_context_of_each_turn() -> None:
    chain = Chain(
        chain_id="c",
        rollout_id="r",
        agent_id="main",
        role="main",
        parent_chain_id=None,
        fork_cause="root",
        segments=(
            Segment(ids=(1, 2, 3), logprobs=(), trainable=False, call_id="k0", policy_version=-1),
            Segment(ids=(4, 5), logprobs=(-0.1, -0.2), trainable=True, call_id="k0", policy_version=0),
            Segment(ids=(6,), logprobs=(), trainable=False, call_id="k1", policy_version=-1),
            Segment(ids=(7,), logprobs=(-0.3,), trainable=True, call_id="k1", policy_version=0),
        ),
    )
    turns = tuple(
        Turn(
            index=i,
            call_id=f"k{i}",
            tool_call_id=f"x{i}",
            agent_id="main",
            source="sandbox",
            thought="",
            action="ls",
            observation="",
            exit_code=0,
            error_class=None,
            duration_s=0.0,
        )
        for i in range(2)
    )
    usage = Usage(turns=2, calls=2, prompt_tokens=4, completion_tokens=3, wall_s=1.0, sandbox_s=0.1)
    trajectory = Trajectory(
        rollout_id="r",
        group_id="g",
        index=0,
        attempt=0,
        task_id="t",
        status="completed",
        fault="",
        chains=(chain,),
        turns=turns,
        final_payload=None,
        usage=usage,
        policy_versions=(0, 0),
        final_state_uri="",
    )
    task = TaskSpec(
        task_id="t", suite="s", instruction="", seed=0, horizon=4, limits=Limits(max_turns=9, max_tokens=99)
    )
    verdict = Verdict(gates=(), scores=(), reward=1.0, passed=True)
    judged = Judged(rollout_id="r", group_id="g", task_id="t", result=verdict)
    (made,) = runs_of([trajectory], [judged], {"t": task})
    assert (made.horizon, made.context_tokens, made.passed) == (4, (5, 7), True)
    unjudged = Judged(rollout_id="r", group_id="g", task_id="t", result=Unjudged(reason="ours"))
    assert runs_of([trajectory], [unjudged], {"t": task}) == ()
