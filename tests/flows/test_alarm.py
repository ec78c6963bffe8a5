"""The zero-gradient alarm watches a run, not an iteration: small iterations ring together."""

from __future__ import annotations

from flows_fakes import CONFIG, Scripted, an_artifact

from flows.home import Home, open_desk
from flows.loop import RunState, iterate
from flows.overrides import with_flags
from tasks.pass_rates import Curriculum
from tasks.policies import Policy
from tasks.pools import make_pools
from tasks.progress import Silent


def alarms_of(root, *flags: str) -> list[bool]:
    """Whether the alarm rings in each of three iterations of 16 rollouts that all fail."""
    config = with_flags(CONFIG, ("curriculum.strategy=uniform", *flags))
    with open_desk(Home(root), config, Silent()) as desk:
        pool = make_pools(desk.workshop.suite(config.pool.suite), config.pool).train
        policy = Policy(manifest=an_artifact(desk, "policy 0"), version=0)
        state = RunState(
            policy=policy,
            start=policy,
            curriculum=Curriculum(strategy=config.strategy(), pool=pool, folded=None),
        )
        run, rings = Scripted(desk, lambda task_id: 0), []
        for number in range(3):
            done = iterate(desk, run, config, state, number)
            state = done.after
            rings.append(bool(done.record.zero_gradient.alarm))
    return rings


def test_iterations_of_few_rollouts_ring_once_they_hold_enough_together(tmp_path):
    assert alarms_of(tmp_path) == [False, True, True]


def test_a_run_says_when_its_alarm_rings(tmp_path):
    assert alarms_of(tmp_path / "sooner", "curriculum.min_watched_rollouts=16") == [True, True, True]
    assert alarms_of(tmp_path / "never", "curriculum.min_useful_share=0") == [False, False, False]
