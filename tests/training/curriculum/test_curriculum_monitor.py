"""Where an iteration's rollouts and tokens went, against what was expected."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from curriculum_fakes import group, pool, roll, task

from training.curriculum.base import Evidence, Selection
from training.curriculum.monitor import ZeroGradientReport, watch, window
from training.curriculum.posterior import Posterior
from training.curriculum.uniform import Uniform


def selection_of(size: int) -> Selection:
    strategy = Uniform()
    return strategy.select(strategy.start(pool(size)), size, policy_version=0, seed=0)


def groups(passes: list[int]) -> list[Evidence]:
    return [e for i, k in enumerate(passes) for e in group(task(i), k, 8)]


def test_groups_rollouts_and_tokens_are_sorted_by_whether_they_carry_gradient() -> None:
    report = watch(groups([0, 0, 8, 3, 5]), selection_of(5))
    assert (report.all_fail.groups, report.all_pass.groups, report.mixed.groups) == (2, 1, 2)
    assert (report.all_fail.rollouts, report.all_fail.tokens, report.mixed.tokens) == (16, 160, 160)
    assert report.zero_gradient_share == pytest.approx(0.6)
    assert report.wasted_token_share == pytest.approx(0.6)
    assert report.metrics()["zero_gradient/all_pass_share"] == pytest.approx(0.2)


def test_groups_of_equal_reward_carry_none_and_of_unequal_scores_some() -> None:
    all_pass = group(task(0), 8, 8)
    scored = [dataclasses.replace(e, reward=0.5 + 0.05 * i) for i, e in enumerate(all_pass)]
    assert watch(all_pass, selection_of(1)).mixed.groups == 0
    assert watch(scored, selection_of(1)).mixed.groups == 1


def test_expectation_is_the_beta_binomial_predictive_and_surprise_its_distance() -> None:
    report = watch(groups([4] * 9), selection_of(9))
    assert report.expected_useful == pytest.approx(7 / 9)
    assert report.surprise == pytest.approx((9 - 7) / (9 * 7 / 9 * 2 / 9) ** 0.5)
    assert report.metrics()["zero_gradient/expected_share"] == pytest.approx(2 / 9)


def test_groups_that_nobody_chose_are_seen_but_not_expected() -> None:
    report = watch(group(task(5), 4, 8), selection_of(2))
    assert (report.num_groups, report.expected_useful, report.surprise) == (1, None, None)
    assert "zero_gradient/expected_share" not in report.metrics()


@pytest.mark.parametrize(("passes", "cause"), [(0, "too hard for this policy"), (8, "the pool is nearly solved")])
def test_the_alarm_rings_under_the_bound_and_names_the_cause(passes: int, cause: str) -> None:
    report = watch(groups([passes] * 6 + [4, 4]), selection_of(8))
    assert report.alarm.startswith("only 25% of groups carry gradient (bound 40%)")
    assert cause in report.alarm
    assert watch(groups([passes] * 6 + [4, 4]), selection_of(8), min_useful_share=0.2).alarm == ""


@pytest.mark.parametrize("seed", range(20))
def test_the_alarm_rings_on_the_few_large_groups_of_a_hard_pool(seed: int) -> None:
    """The trap itself: for a pool of 0/8 and 1/8 tasks the strategy can make 4 groups of 16 where 8 were asked."""
    strategy = Posterior(large_gain=1.1)
    state = strategy.fold(strategy.start(pool(24)), [e for i in range(24) for e in group(task(i), i % 2, 8)])
    chosen = strategy.select(state, 8, policy_version=1, seed=seed)
    assert len(chosen.decisions) < 8
    assert max(d.group_size for d in chosen.decisions) == 16
    rolled = roll(chosen, [0.0] * 24, np.random.default_rng(seed))
    assert watch(rolled, chosen).alarm.startswith("only 0% of groups carry gradient (bound 40%); most of the rest fail")


def test_iterations_too_small_to_ring_ring_together() -> None:
    """16 rollouts say nothing, 32 do; the oldest iteration leaves the window once the newer ones suffice."""
    reports: list[ZeroGradientReport] = []
    for passes in ([4, 4], [4, 0], [0, 0], [0, 4], [4, 4], [4, 4]):
        reports.append(watch(groups(passes), selection_of(2), before=reports, min_useful_share=0.4))
    rings = [bool(r.alarm) for r in reports]
    assert rings == [False, False, True, True, False, False]
    assert reports[2].alarm.startswith("only 25% of groups of the last 2 iterations carry gradient (bound 40%)")
    assert window(reports, 32) == tuple(reports[-2:])
    assert window(reports, 33) == tuple(reports[-3:])


@pytest.mark.parametrize(("min_rollouts", "rings"), [(16, True), (32, True), (33, False)])
def test_the_alarm_waits_for_as_many_rollouts_as_it_is_told(min_rollouts: int, rings: bool) -> None:
    report = watch(groups([0] * 4), selection_of(4), min_rollouts=min_rollouts)
    assert bool(report.alarm) is rings


def test_an_iteration_of_which_nothing_was_judged_is_said_to_be_that() -> None:
    report = watch([], selection_of(3), before=[watch(groups([4] * 4), selection_of(4))])
    assert report.alarm.startswith("none of the 24 rollouts asked for could be judged: faults of ours")
    assert (report.num_groups, report.num_rollouts, report.zero_gradient_share) == (0, 0, 1.0)
    assert report.metrics()["zero_gradient/alarm"] == 1.0
    assert report.metrics()["zero_gradient/share"] == 1.0
    later = watch(groups([4] * 4), selection_of(4), before=[report])
    assert later.alarm == ""
