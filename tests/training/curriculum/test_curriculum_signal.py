"""The arithmetic that every claim about the 75% rule rests on."""

from __future__ import annotations

import numpy as np
import pytest
from curriculum_fakes import group, pool, roll
from scipy import integrate, stats

from training.curriculum.dynamic_sampling import DynamicSampling
from training.curriculum.seventy_five import WORDS, SeventyFive
from training.curriculum.signal import (
    mass_per_rollout,
    mean_score_coefficient,
    mixed_predictive,
    mixed_probability,
    predictive_mass,
    probability_at_least,
)

SHAPES = [(0.3, 0.3), (0.5, 1.5), (1.0, 1.0), (1.5, 0.5)]


@pytest.mark.parametrize(
    ("p", "chance"), [(0.01, 0.0773), (0.05, 0.3366), (0.10, 0.5695), (0.20, 0.8322), (0.25, 0.8999), (0.50, 0.9922)]
)
def test_a_group_of_8_carries_gradient_as_often_as_the_table_says_on_both_sides(p: float, chance: float) -> None:
    assert mixed_probability(np.array([p, 1 - p]), 8) == pytest.approx([chance, chance], abs=5e-5)


def test_at_75_percent_std_advantages_lose_little_and_mean_advantages_a_quarter() -> None:
    p = np.array([0.75, 0.50])
    std, mean = mass_per_rollout(p, 8, "std"), mass_per_rollout(p, 8, "mean")
    assert std[0] / std[1] == pytest.approx(0.907, abs=5e-4)
    assert mean[0] / mean[1] == pytest.approx(0.75)
    assert mean_score_coefficient(p, 8) == pytest.approx([0.380, 0.464], abs=5e-4)


def test_of_a_larger_groups_signal_the_mean_gradient_grows_by_the_root_only() -> None:
    p = np.array([0.75, 0.85, 0.90, 0.95])
    mass = mass_per_rollout(p, 16, "std") / mass_per_rollout(p, 8, "std")
    gradient = mean_score_coefficient(p, 16) / mean_score_coefficient(p, 8)
    assert mass == pytest.approx([1.10, 1.27, 1.43, 1.66], abs=0.005)
    assert gradient == pytest.approx(np.sqrt(mass), abs=0.04)


@pytest.mark.parametrize("mode", ["std", "mean"])
@pytest.mark.parametrize("p", [0.07, 0.4, 0.9])
def test_mass_is_the_expected_sum_of_squared_advantages(mode: str, p: float) -> None:
    expected = 0.0
    for k in range(9):
        rewards = np.array([1.0] * k + [0.0] * (8 - k))
        advantages = rewards - rewards.mean()
        if mode == "std" and 0 < k < 8:
            advantages = advantages / rewards.std()
        expected += stats.binom.pmf(k, 8, p) * (advantages**2).sum() / 8
    assert mass_per_rollout(np.array(p), 8, mode) == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["std", "mean"])
def test_predictive_mass_averages_over_the_posterior_and_not_at_its_mean(mode: str) -> None:
    a, b = 2.3, 0.8

    def weighted(p: float) -> float:
        return float(mass_per_rollout(np.array(p), 8, mode)) * stats.beta.pdf(p, a, b)  # type: ignore[arg-type]

    by_quadrature = integrate.quad(weighted, 0, 1)[0]
    assert predictive_mass(np.array(a), np.array(b), 8, mode) == pytest.approx(by_quadrature, rel=1e-6)  # type: ignore[arg-type]
    assert mixed_predictive(np.array(1.0), np.array(1.0), 8) == pytest.approx(7 / 9)


def test_predictive_agrees_with_the_beta_binomial() -> None:
    outside = stats.betabinom.pmf(0, 5, 0.4, 2.0) + stats.betabinom.pmf(5, 5, 0.4, 2.0)
    assert mixed_predictive(np.array(0.4), np.array(2.0), 5) == pytest.approx(1 - outside)
    assert probability_at_least(np.array(3.0), np.array(2.0), 0.75) == pytest.approx(stats.beta.sf(0.75, 3, 2))


@pytest.mark.parametrize(
    ("shape", "per_group", "by_variance"),
    list(zip(SHAPES, [0.47, 0.61, 0.78, 0.61], [0.375, 0.50, 0.67, 0.50], strict=True)),
)
def test_an_oracle_on_a_static_pool_needs_the_share_that_the_table_says(
    shape: tuple[float, float], per_group: float, by_variance: float
) -> None:
    a, b = np.array(shape[0]), np.array(shape[1])
    best = np.array(0.5)
    std = predictive_mass(a, b, 8, "std") / mass_per_rollout(best, 8, "std")
    mean = predictive_mass(a, b, 8, "mean") / mass_per_rollout(best, 8, "mean")
    assert (std, mean) == pytest.approx((per_group, by_variance), abs=6e-3)


def gate_codes() -> dict[str, list[int]]:
    """Which counts of 8 the literal rule's own gate sorts where."""
    strategy, tasks = SeventyFive(), pool(9)
    state = strategy.start(tasks)
    for k, spec in enumerate(tasks.tasks):
        state = strategy.fold(state, group(spec, k, 8, kind="probe"))
    code = strategy.gate(state)
    return {word: [k for k in range(9) if WORDS[code[k]] == word] for word in WORDS}


@pytest.mark.parametrize(("p", "dropped"), [(0.50, 0.14), (0.70, 0.55), (0.75, 0.68), (0.90, 0.96)])
def test_the_literal_gate_of_8_samples_drops_good_tasks_as_often_as_the_noise_table_says(
    p: float, dropped: float
) -> None:
    retired = gate_codes()["retired"]
    assert stats.binom.pmf(retired, 8, p).sum() == pytest.approx(dropped, abs=6e-3)


def test_the_literal_gate_calls_half_of_all_20_percent_tasks_too_hard() -> None:
    codes = gate_codes()
    assert codes == {"unprobed": [], "hard": [0, 1], "band": [2, 3, 4, 5], "retired": [6, 7, 8]}
    assert stats.binom.pmf(codes["hard"], 8, 0.20).sum() == pytest.approx(0.50, abs=6e-3)


@pytest.mark.parametrize(
    ("shape", "resampled", "literal"),
    list(zip(SHAPES, [17.2, 13.2, 10.3, 13.1], [47.9, 34.4, 28.0, 39.6], strict=True)),
)
def test_strategies_on_a_static_pool_spend_the_rollouts_a_useful_group_that_the_arithmetic_says(
    shape: tuple[float, float], resampled: float, literal: float
) -> None:
    tasks, rng = pool(2500), np.random.default_rng(75)
    rates = stats.beta.ppf((np.arange(2500) + 0.5) / 2500, *shape).tolist()
    assert per_useful(DynamicSampling(), tasks, rates, 2500, rng) == pytest.approx(resampled, rel=0.06)
    strategy = SeventyFive()
    state = strategy.start(tasks)
    probed = strategy.fold(state, roll(strategy.probes(state, policy_version=0, seed=0), rates, rng, "p"))
    band = int((strategy.gate(probed) == 2).sum())
    useful = band * 8 / per_useful(strategy, tasks, rates, band, rng, probed)
    assert (2500 * 8 + band * 8) / useful == pytest.approx(literal, rel=0.06)


def per_useful(strategy, tasks, rates, n, rng, state=None) -> float:  # type: ignore[no-untyped-def]
    """Rollouts of one selection per group of it that carries gradient."""
    chosen = strategy.select(state or strategy.start(tasks), n, policy_version=0, seed=0)
    evidence = roll(chosen, rates, rng)
    passed: dict[str, set[bool]] = {}
    for e in evidence:
        passed.setdefault(e.group_id, set()).add(e.passed)
    return len(evidence) / sum(len(outcomes) == 2 for outcomes in passed.values())
