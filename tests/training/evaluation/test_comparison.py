"""Paired comparison and promotion."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from training.evaluation.comparison import ComparisonError, compare, sign_flip_p_value
from training.evaluation.promotion import Measurement, PromotionRule, decide

TASKS = [f"t{i:03d}" for i in range(60)]
HORIZONS = {task: 3 + i % 10 for i, task in enumerate(TASKS)}


def test_a_gain_is_the_mean_over_tasks_of_the_difference_of_task_means() -> None:
    before = {"a": [0.0, 1.0], "b": [0.0]}
    after = {"a": [1.0, 1.0], "b": [1.0]}
    result = compare(before, after, horizons={"a": 3, "b": 9}, bands=(5,), seed=0)
    assert (result.before.mean, result.after.mean, result.gain.mean) == (0.25, 1.0, 0.75)
    assert result.p_value == 0.5  # two of the four sign patterns are as far out
    assert [(b.low, b.high, b.gain.mean) for b in result.by_band] == [(3, 5, 0.5), (6, 9, 1.0)]


def test_the_sign_flip_test_is_exact_where_it_can_be() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p_value(np.ones(10), rng, 100) == pytest.approx(2 / 1024)
    assert sign_flip_p_value(np.array([1.0, -1.0]), rng, 100) == 1.0
    assert sign_flip_p_value(np.zeros(30), rng, 100) == 1.0


def test_correlated_attempts_do_not_make_false_discoveries() -> None:
    """Eight attempts a task, tasks of their own difficulty, and a policy compared with its equal."""
    rng = np.random.default_rng(1)
    rejected = covered = 0
    for seed in range(300):
        noise = rng.beta(0.3, 0.3, size=(2, 40))  # each policy's own luck with each task
        draws = rng.random((2, 40, 8)) < noise[:, :, None]
        before, after = ({TASKS[t]: d[t].astype(float).tolist() for t in range(40)} for d in draws)
        result = compare(before, after, horizons=HORIZONS, bands=(), seed=seed, resamples=400)
        rejected += result.p_value <= 0.05
        covered += result.gain.low <= 0 <= result.gain.high
    assert rejected <= 27  # 5% of 300 is 15; 27 is its 99.9% bound
    assert covered >= 269


def test_tasks_that_do_not_pair_are_named() -> None:
    with pytest.raises(ComparisonError, match=r"2 tasks are in one result only \(a, b\)"):
        compare({"a": [1.0]}, {"b": [1.0]}, horizons={}, bands=(), seed=0)
    with pytest.raises(ComparisonError, match=r"without a judged attempt: a"):
        compare({"a": []}, {"a": [1.0]}, horizons={}, bands=(), seed=0)


def measured(rate: float, version: int, seed: int = 0, tasks: int = 60) -> Measurement:
    rng = np.random.default_rng(seed)
    rewards = {task: [float(rng.random() < rate)] for task in TASKS[:tasks]}
    return Measurement(
        policy_version=version,
        weights_digest=f"w{version}",
        evaluation_digest="e" * 64,
        rewards=rewards,
        num_excluded=0,
    )


def flat(tasks: list[str], reward: float) -> dict[str, list[float]]:
    return {task: [reward] for task in tasks}


def verdict(candidate: Measurement, champion: Measurement | None, **rule: float) -> tuple[bool, str]:
    result = decide(
        candidate,
        champion,
        rule=PromotionRule(**rule),  # type: ignore[arg-type]
        horizons=HORIZONS,
        bands=(6,),
        seed=0,
    )
    return result.promote, " | ".join(result.reasons)


def test_a_clear_gain_on_the_same_evaluation_is_promoted_with_its_numbers() -> None:
    promote, why = verdict(measured(0.9, 2), measured(0.3, 1))
    assert promote
    assert "over the champion on 60 tasks" in why


def test_a_first_candidate_is_said_to_beat_the_start_and_not_a_champion_that_is_not_there() -> None:
    promote, why = verdict(measured(0.9, 2), dataclasses.replace(measured(0.3, 0), name="start"))
    assert promote
    assert "over the start on 60 tasks" in why
    assert "champion" not in why


def test_an_equal_is_refused() -> None:
    promote, why = verdict(measured(0.5, 2, seed=1), measured(0.5, 1, seed=2))
    assert not promote
    assert "its lower end must exceed +0.0" in why


def test_a_gain_below_what_is_asked_is_refused() -> None:
    assert not verdict(measured(0.9, 2), measured(0.3, 1), min_gain=0.7)[0]


def test_measurements_that_differ_in_evaluation_or_not_in_weights_are_refused() -> None:
    other = dataclasses.replace(measured(0.3, 1), evaluation_digest="f" * 64)
    assert "benchmark the champion again" in verdict(measured(0.9, 2), other)[1]
    same = dataclasses.replace(measured(0.3, 1), weights_digest="w2")
    assert "are the same weights" in verdict(measured(0.9, 2), same)[1]


def test_few_tasks_or_many_lost_attempts_are_refused() -> None:
    assert "was measured on 20 tasks" in verdict(measured(0.9, 2, tasks=20), measured(0.3, 1, tasks=20))[1]
    lossy = dataclasses.replace(measured(0.9, 2), num_excluded=6)
    promote, why = verdict(lossy, measured(0.3, 1))
    assert not promote
    assert "9.1% of the candidate's attempts had no verdict" in why


def test_a_gain_that_sacrifices_a_band_is_refused() -> None:
    champion, candidate = measured(0.0, 1), measured(1.0, 2)
    long = [task for task in TASKS if HORIZONS[task] > 6]
    better = flat(TASKS, 1.0)
    traded = dataclasses.replace(candidate, rewards=better | flat(long[:12], 0.0))
    had = dataclasses.replace(champion, rewards=flat(TASKS, 0.0) | flat(long[:12], 1.0))
    promote, why = verdict(traded, had, max_band_loss=0.05)
    assert promote  # the band as a whole still gains
    worse = dataclasses.replace(candidate, rewards=better | flat(long, 0.0))
    strong = dataclasses.replace(champion, rewards=flat(TASKS, 0.0) | flat(long[:20], 1.0))
    promote, why = verdict(worse, strong)
    assert not promote
    assert "horizons 7-12 lose" in why


def test_without_a_champion_a_sound_measurement_suffices() -> None:
    assert verdict(measured(0.1, 1), None)[0]
    assert not verdict(measured(0.1, 1, tasks=5), None)[0]
