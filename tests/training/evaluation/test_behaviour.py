"""Behaviour rates, and runs made from the record."""

from __future__ import annotations

import pytest
from evaluation_fakes import run
from fake_records import a_chain, a_rollout, a_turn, rendered, sampled

from environments.types import (
    Judged,
    Limits,
    TaskSpec,
    Unjudged,
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
    chain = a_chain(
        "r",
        rendered(1, 2, 3, call_id="k0"),
        sampled(4, 5, call_id="k0"),
        rendered(6, call_id="k1"),
        sampled(7, call_id="k1"),
    )
    turns = tuple(a_turn(index=i, call_id=f"k{i}") for i in range(2))
    trajectory = a_rollout("r", chains=(chain,), turns=turns)
    task = TaskSpec(
        task_id="t", suite="s", instruction="", seed=0, horizon=4, limits=Limits(max_turns=9, max_tokens=99)
    )
    verdict = Verdict(gates=(), scores=(), reward=1.0, passed=True)
    judged = Judged(rollout_id="r", group_id="g", task_id="t", result=verdict)
    (made,) = runs_of([trajectory], [judged], {"t": task})
    assert (made.horizon, made.context_tokens, made.passed) == (4, (5, 7), True)
    unjudged = Judged(rollout_id="r", group_id="g", task_id="t", result=Unjudged(reason="ours"))
    assert runs_of([trajectory], [unjudged], {"t": task}) == ()
