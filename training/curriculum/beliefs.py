"""What a state implies about each task's pass rate now: a Beta posterior, with a prior learned from its kin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.curriculum.base import need
from training.curriculum.ledger import Aging, Floats, State


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Beta(alpha_N, beta_N) of each task's pass rate; `weight_N` is the faded number of rollouts behind it.

    `kin_mean_K` is the prior mean of each kin and `strength` the prior's pseudo-rollouts.
    """

    alpha_N: Floats
    beta_N: Floats
    weight_N: Floats
    kin_mean_K: Floats
    strength: float

    @property
    def mean_N(self) -> Floats:
        """Posterior means. [N]"""
        return self.alpha_N / (self.alpha_N + self.beta_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinPrior:
    """How a task without evidence borrows from others.

    The prior is Beta(m s, (1 - m) s). The mean m of a kin is its tasks' mean pass rate, shrunk to the pool's mean
    as if `pool_tasks` average tasks stood beside it; the pool's own mean starts from `first_mean` with weight of
    one task. The strength s is estimated from how much tasks differ within their kin (method of moments for the
    Beta-binomial), inside `strength_bounds`, starting from `first_strength` while fewer than 10 tasks are known.
    """

    first_mean: float = 0.5
    first_strength: float = 2.0
    strength_bounds: tuple[float, float] = (0.4, 20.0)
    pool_tasks: float = 4.0

    def __post_init__(self) -> None:
        need(0 < self.first_mean < 1, f"prior.first_mean is {self.first_mean}; want a number in (0, 1)")
        low, high = self.strength_bounds
        need(
            0 < low <= self.first_strength <= high,
            f"prior.first_strength {self.first_strength} is outside strength_bounds {self.strength_bounds}",
        )


def faded_counts(state: State, aging: Aging, policy_version: int) -> tuple[Floats, Floats]:
    """Passes and fails as they weigh at `policy_version`. [N], [N]"""
    c = state.columns
    if aging.per == "visit":
        return c.passes, c.fails
    gap = np.maximum(policy_version - c.last_version, 0)
    fade = aging.discount ** np.where(c.last_version >= 0, gap, 0)
    return c.passes * fade, c.fails * fade


def flat(state: State, aging: Aging, policy_version: int) -> Beliefs:
    """Every task on its own from Beta(1, 1): what strategies without a model of kin believe."""
    passes, fails = faded_counts(state, aging, policy_version)
    kin_mean = np.full(len(state.tasks.kin_names), 0.5)
    return Beliefs(passes + 1.0, fails + 1.0, passes + fails, kin_mean, 2.0)


def with_kin(state: State, aging: Aging, prior: KinPrior, policy_version: int) -> Beliefs:
    """Each task from its kin's present pass rate; tasks not seen for long drift back to it."""
    passes, fails = faded_counts(state, aging, policy_version)
    weight = passes + fails
    strength = _strength(state, passes, weight, prior)
    kin_mean = _kin_means(state, passes, weight, strength, prior)
    mean = kin_mean[state.tasks.kin_N]
    return Beliefs(passes + mean * strength, fails + (1 - mean) * strength, weight, kin_mean, strength)


def _rates(passes: Floats, weight: Floats) -> Floats:
    return np.divide(passes, weight, out=np.zeros_like(passes), where=weight > 0)


def _kin_means(state: State, passes: Floats, weight: Floats, strength: float, prior: KinPrior) -> Floats:
    """Tasks are averaged, not rollouts: a task visited often would otherwise stand for its kin."""
    say = weight / (weight + strength)
    rate = _rates(passes, weight)
    pool = (float((say * rate).sum()) + prior.first_mean) / (float(say.sum()) + 1.0)
    k = len(state.tasks.kin_names)
    total = np.bincount(state.tasks.kin_N, weights=say * rate, minlength=k)
    says = np.bincount(state.tasks.kin_N, weights=say, minlength=k)
    mean = (total + pool * prior.pool_tasks) / (says + prior.pool_tasks)
    return np.clip(mean, 0.01, 0.99)


def _strength(state: State, passes: Floats, weight: Floats, prior: KinPrior) -> float:
    """Pseudo-rollouts s with 1/(s+1) = the intraclass correlation rho within kin.

    Var(rate_i) = m(1-m) (rho + (1 - rho)/n_i) for n_i rollouts; solved for rho over tasks with at least 2.
    """
    known = weight >= 2
    if known.sum() < 10:
        return prior.first_strength
    kin, rate, n = state.tasks.kin_N[known], _rates(passes, weight)[known], weight[known]
    k = len(state.tasks.kin_names)
    tasks = np.bincount(kin, minlength=k)
    mean = np.bincount(kin, weights=rate, minlength=k) / np.maximum(tasks, 1)
    usable = tasks[kin] >= 2
    spread = (((rate - mean[kin]) ** 2) * tasks[kin] / np.maximum(tasks[kin] - 1, 1))[usable].sum()
    scale = (mean * (1 - mean))[kin][usable]
    noise = float((scale / n[usable]).sum())
    room = float((scale * (1 - 1 / n[usable])).sum())
    if room <= 0:
        return prior.first_strength
    rho = min(max((float(spread) - noise) / room, 1e-6), 1.0)
    return float(np.clip(1 / rho - 1, *prior.strength_bounds))
