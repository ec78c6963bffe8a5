"""Where an iteration's rollouts and tokens went, against what was expected."""

from __future__ import annotations

import dataclasses

import pytest
from curriculum_fakes import group, pool, task

from training.curriculum.base import CurriculumError, Evidence, Selection
from training.curriculum.monitor import watch
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


def test_few_groups_raise_no_alarm_and_none_are_an_error() -> None:
    assert watch(groups([0] * 7), selection_of(7)).alarm == ""
    with pytest.raises(CurriculumError, match="no evidence; watch an iteration after judging it"):
        watch([], selection_of(1))
