"""What a state implies about each task's pass rate now: a Beta posterior, moved by the drift learned from revisits.

Between two visits the policy changes. A posterior that only fades would lag behind a pool that improves, and spend
groups on tasks that have long been solved. So each revisit also teaches how far pass rates move: per policy version
for every task, and for having trained on a group that carried gradient (`Drift`). A task is then believed to stand
where it stood, moved by that, less surely by `discount` per version; what is lost of its evidence is replaced by
the prior its kin give.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from training.curriculum.base import need
from training.curriculum.ledger import Aging, Floats, Ints, State, Visit


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Beta(alpha_N, beta_N) of each task's pass rate; `kin_mean_K` and `strength` are the prior's."""

    alpha_N: Floats
    beta_N: Floats
    kin_mean_K: Floats
    strength: float

    @property
    def mean_N(self) -> Floats:
        """Posterior means. [N]"""
        return self.alpha_N / (self.alpha_N + self.beta_N)


def flat(state: State, aging: Aging, policy_version: int) -> Beliefs:
    """Every task on its own from Beta(1, 1): what strategies without a model of kin believe."""
    passes, fails = aging.now(state, policy_version)
    return Beliefs(passes + 1.0, fails + 1.0, np.full(len(state.tasks.kin_names), 0.5), 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinPrior:
    """What a task without evidence is believed to be.

    The prior is Beta(m s, (1 - m) s). The mean m of a kin is its visited tasks' mean, recent ones counting more,
    shrunk to the pool's mean as if `pool_tasks` average tasks stood beside it; the pool's own mean starts from
    `first_mean` with the weight of one task. The strength s is estimated from how much tasks differ within their
    kin in their newest visits (method of moments for the Beta-binomial), inside `strength_bounds`; it is
    `first_strength` while fewer than 10 tasks are known.
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

    def means(self, state: State, rate_N: Floats, say_N: Floats) -> Floats:
        """Prior mean of each kin; tasks are averaged, not rollouts, or one visited often would stand for all. [K]"""
        pool = (float((say_N * rate_N).sum()) + self.first_mean) / (float(say_N.sum()) + 1.0)
        k = len(state.tasks.kin_names)
        total = np.bincount(state.tasks.kin_N, weights=say_N * rate_N, minlength=k)
        says = np.bincount(state.tasks.kin_N, weights=say_N, minlength=k)
        return np.clip((total + pool * self.pool_tasks) / (says + self.pool_tasks), 0.01, 0.99)

    def strength(self, state: State) -> float:
        """Pseudo-rollouts s, where 1/(s + 1) is the intraclass correlation rho of newest visits within kin.

        Var(rate_i) = m (1 - m) (rho + (1 - rho) / n_i) for n_i rollouts, solved for rho.
        """
        c = state.columns
        known = c.batch_size >= 2
        if known.sum() < 10:
            return self.first_strength
        kin, n = state.tasks.kin_N[known], c.batch_size[known]
        rate = c.batch_passes[known] / n
        tasks = np.bincount(kin, minlength=len(state.tasks.kin_names))
        mean = np.bincount(kin, weights=rate, minlength=len(tasks)) / np.maximum(tasks, 1)
        spread = (rate - mean[kin]) ** 2 * tasks[kin] / np.maximum(tasks[kin] - 1, 1)
        scale = np.where(tasks[kin] >= 2, (mean * (1 - mean))[kin], 0.0)
        room = float((scale * (1 - 1 / n)).sum())
        if room <= 0:
            return self.first_strength
        rho = (float(spread[tasks[kin] >= 2].sum()) - float((scale / n).sum())) / room
        return float(np.clip(1 / max(rho, 1e-6) - 1, *self.strength_bounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far pass rates move between visits, in logits: learned, by recursive least squares on revisits.

    move = per_version * (versions since) + per_lesson * (1 if the last visit carried gradient). Before evidence
    both are 0 with standard deviations `sd_per_version` and `sd_per_lesson`; evidence of how they were is
    forgotten by `memory` per fold. No move is larger than `max_move`.
    """

    sd_per_version: float = 0.05
    sd_per_lesson: float = 0.5
    memory: float = 0.98
    max_move: float = 2.0

    def __post_init__(self) -> None:
        need(0 < self.memory <= 1, f"drift.memory is {self.memory}; want a number in (0, 1]")
        need(self.max_move >= 0, f"drift.max_move is {self.max_move}; want >= 0 logits (0: believe in no drift)")

    def rates(self, state: State) -> Floats:
        """[per_version, per_lesson] as learned so far."""
        a11, a12, a22, b1, b2 = (state.scalar(f"drift_{n}", 0.0) for n in ("a11", "a12", "a22", "b1", "b2"))
        prior = np.diag([self.sd_per_version**-2, self.sd_per_lesson**-2])
        return np.linalg.solve(prior + np.array([[a11, a12], [a12, a22]]), np.array([b1, b2]))

    def moves(self, state: State, version: int) -> Floats:
        """Logits by which each task has moved since its last visit. [N]"""
        per_version, per_lesson = self.rates(state)
        gap = np.maximum(version - state.columns.last_version, 0)
        moved = per_version * gap + per_lesson * ((gap > 0) & state.columns.mixed)
        return np.asarray(np.clip(moved, -self.max_move, self.max_move), dtype=np.float64)

    def _features(self, state: State, rows: Ints, version: int) -> Floats:
        gap = np.maximum(version - state.columns.last_version[rows], 0).astype(np.float64)
        return np.stack([gap, (gap > 0) & state.columns.mixed[rows]], axis=1).astype(np.float64)

    def learn(self, after: State, visit: Visit, believed: Beliefs) -> State:
        """Compare what was `believed` of the tasks that a visit met again with what came.

        One Gauss-Newton step: passes k of n have mean n p and Beta-binomial variance; d(n p)/d(move) = n p (1-p).
        """
        before, c = visit.before.columns, after.columns
        again = (before.visits > 0) & (before.last_version < visit.version) & (c.last_version == visit.version)
        rows = visit.rows[again[visit.rows]]
        alpha, beta = believed.alpha_N[rows], believed.beta_N[rows]
        n, k = c.batch_size[rows].astype(np.float64), c.batch_passes[rows]
        p = alpha / (alpha + beta)
        slope = n * p * (1 - p)
        precision = slope / (1 + (n - 1) / (alpha + beta + 1))
        x = self._features(visit.before, rows, visit.version)
        target = x @ self.rates(visit.before) + (k - n * p) / slope
        added = {
            "drift_a11": precision @ (x[:, 0] * x[:, 0]),
            "drift_a12": precision @ (x[:, 0] * x[:, 1]),
            "drift_a22": precision @ (x[:, 1] * x[:, 1]),
            "drift_b1": precision @ (x[:, 0] * target),
            "drift_b2": precision @ (x[:, 1] * target),
        }
        learned = {name: after.scalar(name, 0.0) * self.memory + float(v) for name, v in added.items()}
        return dataclasses.replace(after, scalars=tuple(sorted((dict(after.scalars) | learned).items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingBeta:
    """The default's beliefs; also the `Fading` of its ledger."""

    discount: float
    max_age: int
    prior: KinPrior
    drift: Drift

    def __post_init__(self) -> None:
        need(0 < self.discount <= 1, f"discount is {self.discount}; want a number in (0, 1]")

    def at(self, state: State, version: int) -> Beliefs:
        """Every task's posterior at a policy version, given all that was folded."""
        return _beliefs(self, state, version)

    def advance(self, state: State, rows: Ints, version: int) -> tuple[Floats, Floats]:
        """See Fading. The counts kept are the whole posterior, the prior of a task's first visit included."""
        beliefs = self.at(state, version)
        return beliefs.alpha_N[rows], beliefs.beta_N[rows]

    def late_weight(self, lateness: Ints) -> Floats:
        """See Fading."""
        return np.asarray(self.discount ** np.arange(int(lateness.max(initial=0)) + 1))[lateness]


@lru_cache(maxsize=4)
def _beliefs(model: DriftingBeta, state: State, version: int) -> Beliefs:
    """Pure, so it is kept: a fold asks for the same beliefs more than once. States are compared by identity."""
    c = state.columns
    keep = np.where(c.visits > 0, model.late_weight(np.maximum(version - c.last_version, 0)), 0.0)
    kept = keep * (c.passes + c.fails)
    grown = c.passes * np.exp(model.drift.moves(state, version))
    mean = np.divide(grown, grown + c.fails, out=np.full(len(kept), 0.5), where=c.visits > 0)
    strength = model.prior.strength(state)
    kin_mean = model.prior.means(state, mean, kept / (kept + strength))
    lost = (1 - keep) * strength
    alpha = kept * mean + lost * kin_mean[state.tasks.kin_N]
    return Beliefs(alpha, kept + lost - alpha, kin_mean, strength)
