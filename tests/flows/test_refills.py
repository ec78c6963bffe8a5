"""Strategies that want their groups without gradient replaced get that from the loop, and every rollout is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flows_fakes import CONFIG, Scripted, an_artifact

from flows.home import Home, open_desk
from flows.loop import Iteration, RunState, iterate
from flows.overrides import with_flags
from tasks.pass_rates import Curriculum
from tasks.policies import Policy
from tasks.pools import make_pools
from tasks.progress import Silent


def one_iteration(root: Path, strategy: str, passes: Callable[[str], int]) -> tuple[Iteration, Scripted]:
    """The loop's first iteration: 12 tasks, 4 groups of 4 wanted."""
    config = with_flags(CONFIG, (f"curriculum.strategy={strategy}",))
    with open_desk(Home(root), config, Silent()) as desk:
        pool = make_pools(desk.workshop.suite(config.pool.suite), config.pool).train
        run = Scripted(desk, passes)
        policy = Policy(manifest=an_artifact(desk, "policy 0"), version=0)
        start = RunState(
            policy=policy,
            start=policy,
            curriculum=Curriculum(strategy=config.strategy(), pool=pool, folded=None),
        )
        return iterate(desk, run, config, start, 0), run


def every_other_task(task_id: str) -> int:
    """Passes of 4: half of them, or none."""
    return 2 if int(task_id[-1], 16) % 2 else 0


@pytest.mark.parametrize("strategy", ["dynamic_sampling", "greso"])
def test_groups_without_gradient_are_replaced_until_enough_carry_some(tmp_path, strategy):
    done, run = one_iteration(tmp_path, strategy, every_other_task)
    record, rounds = done.record, done.training
    assert len(rounds) > 1
    assert record.zero_gradient.mixed.groups == 4
    assert [w.stage.name for w in run.done].count("fold") == len(rounds)
    assert len({g.group_id for g in record.groups}) == len(record.groups) == sum(len(m.groups) for m in rounds)
    assert len({g.task_id for g in record.groups}) == len(record.groups)
    assert record.zero_gradient.num_groups == len(record.groups) == len(record.selection.decisions)
    assert record.selection.notes[-1] == f"{len(rounds) - 1} refill(s) drew {len(record.groups) - 4} more groups"


def test_the_policy_is_trained_on_all_rounds_at_once(tmp_path):
    done, run = one_iteration(tmp_path, "dynamic_sampling", every_other_task)
    trained = next(w for w in run.done if w.stage.name == "train")
    wanted = [m for measured in done.training for m in (measured.rollouts, measured.judged)]
    assert list(trained.parents[2:]) == wanted
    assert done.after.policy.version == 1


def test_refills_end_when_every_task_was_drawn(tmp_path):
    done, _ = one_iteration(tmp_path, "dynamic_sampling", lambda task_id: 0)
    assert len(done.record.groups) == 12
    assert done.record.zero_gradient.mixed.groups == 0


@pytest.mark.parametrize("strategy", ["posterior", "uniform", "seventy_five"])
def test_other_strategies_are_asked_once(tmp_path, strategy):
    done, _ = one_iteration(tmp_path, strategy, lambda task_id: 0)
    assert len(done.training) == 1
    assert done.record.measured_apart == (96 if strategy == "seventy_five" else 0)
