"""Drift statistics against chains whose truth is known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from evaluation_fakes import run
from scipy.stats import binom

from training.evaluation.drift import burst_lengths, excess_over_shuffled, measure_drift, stationary_error_rate
from training.evaluation.estimates import cluster_rates


def two_state(
    error: float, sticky: float, shape: tuple[int, ...], turns: int, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """errors[*shape, turns] of a chain that starts before turn 0 in the state ok."""
    state = np.zeros(shape, dtype=np.bool_)
    out = np.empty((*shape, turns), dtype=np.bool_)
    for turn in range(turns):
        state = rng.random(shape) < np.where(state, sticky, error)
        out[..., turn] = state
    return out


@pytest.mark.parametrize(
    ("sticky", "rate", "burst", "errors_20", "errors_50"),
    [
        (0.05, 0.0500, 1.053, 1.000, 2.500),
        (0.60, 0.1111, 2.5, 2.086, 5.420),
        (0.80, 0.2000, 5.0, 3.402, 9.400),
        (0.90, 0.3333, 10.0, 4.851, 14.778),
    ],
)
def test_a_sticky_chain_has_the_stationary_rate_and_counts_of_its_closed_form(
    sticky: float, rate: float, burst: float, errors_20: float, errors_50: float
) -> None:
    assert stationary_error_rate(0.05, sticky) == pytest.approx(rate, abs=5e-5)
    assert 1 / (1 - sticky) == pytest.approx(burst, abs=5e-4)
    chain = two_state(0.05, sticky, (100_000,), 50, np.random.default_rng(1))
    assert chain[:, :20].sum(1).mean() == pytest.approx(errors_20, abs=0.06)
    assert chain.sum(1).mean() == pytest.approx(errors_50, abs=0.17)
    assert (~chain[:, :20].any(1)).mean() == pytest.approx(0.358486, abs=0.006)  # whatever the stickiness


@pytest.mark.parametrize("sticky", [0.05, 0.6, 0.8])
def test_intervals_cover_the_truth_in_95_of_100_of_a_thousand_seeds(sticky: float) -> None:
    seeds, rollouts = 1000, 120
    now = two_state(0.05, sticky, (seeds, rollouts), 20, np.random.default_rng(2))
    before = np.concatenate([np.zeros((seeds, rollouts, 1), dtype=np.bool_), now[..., :-1]], axis=-1)
    low, high = binom.ppf([0.0005, 0.9995], seeds, 0.95)
    for state, truth in ((~before, 0.05), (before, sticky)):
        _, lows, highs = cluster_rates((now & state).sum(-1).astype(float), state.sum(-1).astype(float), 0.95)
        assert low <= ((lows <= truth) & (truth <= highs)).sum() <= high


def test_unlike_tasks_look_sticky_and_shuffling_within_rollouts_is_not_fooled() -> None:
    rng = np.random.default_rng(3)
    rates = rng.beta(0.2, 1.8, size=800)
    independent = rng.random((800, 20)) < rates[:, None]
    excess = excess_over_shuffled(independent.tolist(), seed=0, num_permutations=200)
    assert excess is not None
    assert excess.raw > 0.25  # P(err|ok) near .07, P(err|err) near .40, with no dependence at all
    assert abs(excess.corrected) < 0.03
    assert excess.p_value > 0.01


def test_a_truly_sticky_chain_stands_out_of_its_shuffles() -> None:
    sticky = two_state(0.05, 0.6, (300,), 20, np.random.default_rng(4))
    excess = excess_over_shuffled(sticky.tolist(), seed=0, num_permutations=200)
    assert excess is not None
    assert excess.raw == pytest.approx(0.55, abs=0.08)
    assert excess.corrected > 0.3
    assert excess.p_value == pytest.approx(1 / 201)


def test_the_rates_of_three_small_runs_are_counted_by_hand() -> None:
    drift = measure_drift([run("..xx.", task_id="a"), run("x.", task_id="b"), run("...", task_id="c")], seed=0)
    assert drift.after_ok is not None
    assert drift.after_error is not None
    assert drift.recovery is not None
    assert drift.error_rate is not None
    assert drift.after_ok.mean == pytest.approx(2 / 7)
    assert drift.after_error.mean == pytest.approx(1 / 3)
    assert drift.recovery.mean == pytest.approx(2 / 3)
    assert drift.long_run_error_rate == pytest.approx((2 / 7) / (2 / 7 + 2 / 3))
    assert drift.error_rate.mean == pytest.approx(3 / 10)
    assert drift.bursts == ((1, 1), (2, 1))
    assert drift.mean_burst == 1.5


def test_an_exact_repeat_is_kept_apart_so_that_it_cannot_make_errors_look_sticky() -> None:
    drift = measure_drift([run("xrrr."), run("....", index=1)], seed=0)
    assert drift.after_error is not None
    assert drift.after_error.mean == 0.0
    assert drift.repeat_share == pytest.approx(3 / 9)
    assert measure_drift([run("...", actions=("ls", "ls", "ls"))], seed=0).loop_share == 1.0


def test_runs_without_one_error_leave_open_what_follows_an_error() -> None:
    drift = measure_drift([run("...")], seed=0)
    assert drift.after_ok is not None
    assert drift.after_ok.mean == 0.0
    assert drift.after_ok.high > 0.5  # one task tells little
    assert (drift.after_error, drift.recovery, drift.mean_burst, drift.excess) == (None, None, None, None)


def test_bursts_are_runs_of_errors_to_the_very_end() -> None:
    assert burst_lengths([True, True, False, True]) == [2, 1]
    assert burst_lengths([]) == []
