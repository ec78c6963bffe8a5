"""Success against horizon: strict (no error at all) and terminal (solved at the end), and where it falls to a half."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from training.evaluation.estimates import Estimate, rate_by_task
from training.evaluation.runs import Run

Floats = npt.NDArray[np.float64]
_RIDGE = 0.01
_REACH = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Success of the tasks with horizons in the closed range `low`..`high`; `mean_horizon` over its rollouts."""

    low: int
    high: int
    mean_horizon: float
    terminal: Estimate
    strict: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfHorizon:
    """The horizon at which terminal success is one half, by a logistic fit in log2(horizon), clustered by task.

    A bound is None where the data do not reach: beyond a factor 4 outside the horizons measured.
    """

    value: float | None
    low: float | None
    high: float | None
    measured_low: int
    measured_high: int


def independent_half_horizon(step_success: float) -> float:
    """ln(1/2) / ln(p): the horizon of half success if every step succeeded with p on its own."""
    if not 0 < step_success < 1:
        raise ValueError(f"step success is {step_success}; want a number strictly between 0 and 1")
    return math.log(0.5) / math.log(step_success)


def pass_hat_k(solved: Sequence[tuple[int, int]], k: int) -> float:
    """pass^k = mean over tasks of C(c, k) / C(n, k) for (c solved of n attempts): all of k attempts succeed.

    Source: tau-bench, arXiv 2406.12045, section 4. Raises ValueError when a task has fewer than k attempts.
    """
    short = next((n for _, n in solved if n < k), None)
    if short is not None or not solved:
        raise ValueError(f"pass^{k} wants at least {k} attempts at every task, got {short if solved else 'no task'}")
    return sum(math.comb(c, k) / math.comb(n, k) for c, n in solved) / len(solved)


def solved_by_task(runs: Sequence[Run]) -> dict[str, tuple[int, int]]:
    """Task id -> (solved, attempts)."""
    out: dict[str, tuple[int, int]] = {}
    for run in runs:
        solved, attempts = out.get(run.task_id, (0, 0))
        out[run.task_id] = (solved + run.passed, attempts + 1)
    return out


def success_by_horizon(runs: Sequence[Run], bands: Sequence[int], *, confidence: float = 0.95) -> tuple[Band, ...]:
    """One Band for each range that has rollouts. `bands` are upper ends, ascending; longer tasks make a last one."""
    tops = sorted({*bands, max((run.horizon for run in runs), default=0)})
    out: list[Band] = []
    bottom = min((run.horizon for run in runs), default=0)
    for top in tops:
        inside = [run for run in runs if bottom <= run.horizon <= top]
        if inside:
            out.append(_band(inside, bottom, top, confidence))
            bottom = top + 1
    return tuple(out)


def _band(runs: Sequence[Run], low: int, high: int, confidence: float) -> Band:
    return Band(
        low=low,
        high=high,
        mean_horizon=sum(run.horizon for run in runs) / len(runs),
        terminal=success_rate(runs, confidence=confidence),
        strict=success_rate(runs, strict=True, confidence=confidence),
    )


def success_rate(runs: Sequence[Run], *, strict: bool = False, confidence: float = 0.95) -> Estimate:
    """Pooled success with an interval clustered by task. Raises ValueError on no runs."""
    hits: dict[str, float] = defaultdict(float)
    trials: dict[str, float] = defaultdict(float)
    for run in runs:
        hits[run.task_id] += run.strict if strict else run.passed
        trials[run.task_id] += 1
    estimate = rate_by_task(hits, trials, confidence=confidence)
    if estimate is None:
        raise ValueError("success rate of no rollouts; give at least one judged rollout")
    return estimate


def half_success_horizon(
    runs: Sequence[Run], *, seed: int, confidence: float = 0.95, resamples: int = 1000
) -> HalfHorizon:
    """Fit logit P(success) = a + b log2(horizon); H = 2^(-a/b). Interval: bootstrap over tasks. Needs 2 horizons."""
    table = solved_by_task(runs)
    horizon_of = {run.task_id: run.horizon for run in runs}
    horizons = np.array([horizon_of[task] for task in table], dtype=np.float64)
    if len(set(horizons.tolist())) < 2:
        raise ValueError(f"half-success horizon from horizons {sorted(set(horizons.tolist()))}; want at least two")
    solved = np.array([c for c, _ in table.values()], dtype=np.float64)
    attempts = np.array([n for _, n in table.values()], dtype=np.float64)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=resamples).astype(np.float64)
    weights = np.vstack([np.ones(len(table)), weights])
    crossings = _crossings(np.log2(horizons), solved, attempts, weights)
    edges = np.quantile(crossings[1:], [0.5 - confidence / 2, 0.5 + confidence / 2], method="nearest")
    shortest, longest = float(horizons.min()), float(horizons.max())

    def within(x: float) -> float | None:
        return float(x) if shortest / _REACH <= x <= longest * _REACH else None

    return HalfHorizon(
        value=within(float(crossings[0])),
        low=within(float(edges[0])),
        high=within(float(edges[1])),
        measured_low=int(shortest),
        measured_high=int(longest),
    )


def _crossings(x_G: Floats, solved_G: Floats, attempts_G: Floats, weights_BG: Floats) -> Floats:
    """H for each of B weightings of G tasks, by Newton's method. A slope that does not fall never crosses: inf or 0."""
    x = x_G - x_G.mean()
    a, b = np.zeros(len(weights_BG)), np.zeros(len(weights_BG))
    for _ in range(30):
        p = expit(np.clip(a[:, None] + b[:, None] * x, -30, 30))
        residual = weights_BG * (solved_G - attempts_G * p)
        curvature = weights_BG * attempts_G * p * (1 - p)
        # A weak prior holds the fit where all succeed or all fail.
        g0, g1 = residual.sum(1) - _RIDGE * a, (residual * x).sum(1) - _RIDGE * b
        h00, h01, h11 = curvature.sum(1) + _RIDGE, (curvature * x).sum(1), (curvature * x * x).sum(1) + _RIDGE
        determinant = h00 * h11 - h01 * h01
        step_a, step_b = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
        a, b = a + np.clip(step_a, -3, 3), b + np.clip(step_b, -3, 3)
        if max(np.abs(step_a).max(), np.abs(step_b).max()) < 1e-8:
            break
    falling = b < -1e-6
    crossing = np.exp2(np.clip(-a / np.where(falling, b, 1.0) + x_G.mean(), -60, 60))
    return np.where(falling, crossing, np.where(a > 0, np.inf, 0.0))
