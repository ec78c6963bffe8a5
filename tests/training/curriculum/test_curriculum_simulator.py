"""The world that strategies are compared on: frozen, its laws as written, every rollout counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import training.curriculum.simulator as simulator
from infra.digests import digest_file
from training.curriculum.arena import play
from training.curriculum.oracle import Oracle
from training.curriculum.simulator import NUM_TASKS, group_mass, learn, make_world, task_pool
from training.curriculum.strategies import build


def test_the_simulator_is_as_it_was_before_strategies_were_tuned() -> None:
    frozen = "029943658cd9ef68e48bfaeecc6d90ebb1f041034b2a78e61ee5a5bfa6bc7bc3"
    assert digest_file(Path(simulator.__file__)) == frozen


def test_mass_is_the_sum_of_squared_advantages_of_a_group() -> None:
    passes, size = np.array([0, 2, 8]), np.array([8, 8, 8])
    assert group_mass(passes, size, "std").tolist() == [0, 8, 0]
    assert group_mass(passes, size, "mean").tolist() == [0, 1.5, 0]


@pytest.mark.parametrize("law", ["own", "kin", "ladder"])
def test_training_helps_the_task_most_then_what_its_law_relates_to_it(law: str) -> None:
    world = make_world("flat", law, "std", 3)  # type: ignore[arg-type]
    mass = np.zeros(NUM_TASKS)
    mass[:32] = 8.0
    rng = np.random.default_rng(0)
    gain = learn(world, mass, rng).logit - learn(world, np.zeros(NUM_TASKS), np.random.default_rng(0)).logit
    inside = np.abs(world.logit) < 5
    assert gain[:32][inside[:32]].min() > gain[32:][inside[32:]].max()
    assert gain[NUM_TASKS:].mean() > 0


def test_pass_rates_start_as_the_shape_says_and_kin_shows_in_tags_only() -> None:
    world = make_world("hard", "kin", "std", 1)
    assert world.rate_N.mean() == pytest.approx(0.25, abs=0.05)
    assert len({t.tags for t in task_pool(world).tasks}) == 16
    assert len({(t.suite, t.horizon, t.instruction) for t in task_pool(world).tasks}) == 1


@pytest.mark.parametrize("name", ["seventy_five", "dynamic_sampling", "posterior"])
def test_probes_refills_and_discarded_groups_are_all_paid_for(name: str) -> None:
    world = make_world("hard", "own", "std", 2)
    log = play(lambda _: build(name), world, groups_per_step=8, max_rollouts=300, seed=2)
    assert log.rollouts[-1] >= 300
    if name == "seventy_five":
        assert log.rollouts[0] == 8 * NUM_TASKS + 64
    if name == "dynamic_sampling":
        assert log.useful[0] == 8
        assert log.rollouts[0] == 8 * log.trained[0] > 64
    if name == "posterior":
        assert log.rollouts[0] <= 64


def test_the_oracle_sees_the_world_as_it_is_now() -> None:
    world = make_world("u_shaped", "own", "std", 2)
    log = play(lambda truth: Oracle(truth=truth), world, groups_per_step=32, max_rollouts=2000, seed=2)
    assert sum(log.useful) / sum(log.trained) > 0.95
