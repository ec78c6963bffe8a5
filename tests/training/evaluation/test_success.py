"""Success against horizon, in closed form where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from evaluation_fakes import run

from training.evaluation.runs import Run
from training.evaluation.success import (
    half_success_horizon,
    independent_half_horizon,
    pass_hat_k,
    solved_by_task,
    success_by_horizon,
    success_rate,
)


@pytest.mark.parametrize(("p", "half"), [(0.9, 6.58), (0.95, 13.51), (0.99, 68.97), (0.999, 692.8)])
def test_independent_steps_have_their_half_horizon(p: float, half: float) -> None:
    assert independent_half_horizon(p) == pytest.approx(half, abs=0.05)


def test_pass_hat_k_is_the_chance_that_all_of_k_attempts_succeed() -> None:
    solved = [(4, 4), (2, 4), (0, 4)]
    assert pass_hat_k(solved, 1) == pytest.approx(0.5)
    assert pass_hat_k(solved, 2) == pytest.approx((1 + 1 / 6 + 0) / 3)
    assert pass_hat_k(solved, 4) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"pass\^5 wants at least 5 attempts"):
        pass_hat_k(solved, 5)


def test_strict_success_allows_no_error_and_terminal_asks_for_the_end_alone() -> None:
    runs = [run("...", task_id="a"), run(".x.", task_id="b"), run("...", task_id="c", passed=False)]
    assert success_rate(runs).mean == pytest.approx(2 / 3)
    assert success_rate(runs, strict=True).mean == pytest.approx(1 / 3)
    assert solved_by_task(runs) == {"a": (1, 1), "b": (1, 1), "c": (0, 1)}


def test_bands_hold_every_task_once_and_the_longest_make_a_band_of_their_own() -> None:
    runs = [run(".", task_id=f"t{h}", horizon=h, passed=h < 8) for h in range(3, 13)]
    bands = success_by_horizon(runs, (5, 8))
    assert [(b.low, b.high, b.terminal.n) for b in bands] == [(3, 5, 3), (6, 8, 3), (9, 12, 4)]
    assert [b.terminal.mean for b in bands] == pytest.approx([1.0, 2 / 3, 0.0])
    assert bands[0].terminal.low < 1.0  # three tasks of three are no certainty


def decaying(p: float, seed: int, tasks: int = 300) -> list[Run]:
    rng = np.random.default_rng(seed)
    horizons = rng.integers(3, 40, size=tasks)
    return [
        run(".", task_id=f"t{i}", horizon=int(h), passed=bool(rng.random() < p**h), index=k)
        for i, h in enumerate(horizons)
        for k in range(2)
    ]


def test_the_half_success_horizon_is_found_with_an_interval_around_the_truth() -> None:
    covered = 0
    for seed in range(10):
        half = half_success_horizon(decaying(0.95, seed), seed=0, resamples=200)
        assert half.value is not None
        assert half.low is not None
        assert half.high is not None
        covered += half.low <= 13.51 <= half.high
    assert covered >= 7  # a logistic in log2(T) is not p^T exactly; it is close at its middle
    assert (half.measured_low, half.measured_high) == (3, 39)


def test_a_half_that_lies_far_outside_the_measured_horizons_is_not_made_up() -> None:
    always = [run(".", task_id=f"t{h}", horizon=h) for h in range(3, 12)]
    half = half_success_horizon(always, seed=0, resamples=100)
    assert half.value is None
    with pytest.raises(ValueError, match="want at least two"):
        half_success_horizon(always[:1], seed=0)
    assert math.isfinite(half.measured_high)
