"""Competing events: the first error, or success without one."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation_fakes import run

from training.evaluation.first_error import (
    Ending,
    context_by_turn,
    cumulative_incidence,
    errors_by_turn,
    first_event,
)


def test_the_first_event_of_a_run_is_its_first_error_its_success_or_its_end() -> None:
    assert first_event(run("..x.x")) == (3, "error")
    assert first_event(run("...")) == (3, "success")
    assert first_event(run("...", passed=False)) == (3, "censored")


def test_without_censoring_the_curve_is_the_share_and_its_variance_is_binomial() -> None:
    events: list[tuple[int, Ending]] = [(1, "error"), (2, "success"), (2, "error"), (3, "success")]
    curve = cumulative_incidence(events)
    assert curve.turns == (1, 2, 3)
    assert curve.at_risk == (4, 3, 1)
    assert curve.error == pytest.approx((0.25, 0.5, 0.5))
    assert curve.success == pytest.approx((0.0, 0.25, 0.5))
    assert curve.error_high[0] - curve.error[0] == pytest.approx(1.959964 * (0.25 * 0.75 / 4) ** 0.5)
    assert curve.error_high[2] - curve.error[2] == pytest.approx(1.959964 * (0.5 * 0.5 / 4) ** 0.5)


def test_a_censored_run_leaves_its_weight_to_those_that_went_on() -> None:
    events: list[tuple[int, Ending]] = [(1, "censored"), (2, "error"), (2, "success")]
    assert cumulative_incidence(events).error == pytest.approx((0.0, 0.5))


def test_censoring_at_success_says_far_more_error_than_there_is() -> None:
    rng = np.random.default_rng(5)
    error_turn = rng.geometric(0.08, size=20_000)
    success_turn = rng.integers(3, 12, size=20_000)
    events: list[tuple[int, Ending]] = [
        (int(e), "error") if e <= s else (int(s), "success") for e, s in zip(error_turn, success_turn, strict=True)
    ]
    truth = float((error_turn <= success_turn).mean())
    assert cumulative_incidence(events).error[-1] == pytest.approx(truth, abs=1e-9)
    as_censored: list[tuple[int, Ending]] = [(t, "error" if e == "error" else "censored") for t, e in events]
    assert cumulative_incidence(as_censored).error[-1] > truth + 0.1


def test_the_interval_covers_the_truth_in_95_of_100() -> None:
    rng = np.random.default_rng(6)
    truth = 1 - 0.9**5
    hits = 0
    for _ in range(400):
        turns = rng.geometric(0.1, size=60)
        events: list[tuple[int, Ending]] = [(int(t), "error") if t <= 5 else (5, "success") for t in turns]
        curve = cumulative_incidence(events)
        hits += curve.error_low[-1] <= truth <= curve.error_high[-1]
    assert 365 <= hits <= 395


def test_error_classes_are_shares_of_the_rollouts_still_running() -> None:
    by_turn = errors_by_turn([run("x."), run("xp.", index=1), run(".", index=2)])
    assert by_turn.num_running == (3, 2, 1)
    assert by_turn.classes == ("exit_code", "parse")
    assert by_turn.shares[0] == pytest.approx((2 / 3, 0.0, 0.0))
    assert by_turn.shares[1] == pytest.approx((0.0, 0.5, 0.0))


def test_context_grows_by_turn_over_the_runs_that_took_it() -> None:
    assert context_by_turn([run(".."), run("...", index=1)]) == (100.0, 200.0, 300.0)


def test_no_rollouts_have_no_curve() -> None:
    with pytest.raises(ValueError, match="at least one"):
        cumulative_incidence([])
