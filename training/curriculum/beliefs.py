"""What a state implies about each task's pass rate now: a Beta posterior, moved by what others have shown since.

Between two visits the policy changes. A posterior that only fades would lag behind a pool that improves, and spend
groups on tasks that have long been solved. So a task is believed to stand where it stood, moved by what its features'
weights have moved and by a lesson it was given, and its evidence counts less by a discount per version. The prior is
not part of the evidence kept: it is added anew whenever a belief is asked for, as it is known by then. How far to
move and how fast to fade is learnt too; see `prior`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from training.curriculum.ledger import Aging, Columns, Floats, Ints, State, Visit
from training.curriculum.prior import MOST_LOGIT, FeaturePrior, Known, Learned, Visited, kin_logits, kin_sums


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Beta(alpha_N, beta_N) of each task's pass rate; `prior_mean_N` and `strength` are the prior's."""

    alpha_N: Floats
    beta_N: Floats
    prior_mean_N: Floats
    strength: float

    @property
    def mean_N(self) -> Floats:
        """Posterior means. [N]"""
        return self.alpha_N / (self.alpha_N + self.beta_N)


def flat(state: State, aging: Aging, policy_version: int) -> Beliefs:
    """Every task on its own from Beta(1, 1): what strategies without a model of kin believe."""
    passes, fails = aging.now(state, policy_version)
    return Beliefs(passes + 1.0, fails + 1.0, np.full(len(passes), 0.5), 2.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """Where tasks [M] stand: evidence that weighs `own` rollouts speaks for a pass rate of `rate`.

    The prior's mean weighs `strength` rollouts. `gain` is what a task's own lessons have added, in logits.
    """

    own: Floats
    rate: Floats
    prior_mean: Floats
    strength: float
    gain: Floats

    @property
    def alpha(self) -> Floats:
        """Of the Beta posterior. [M]"""
        return self.own * self.rate + self.strength * self.prior_mean

    @property
    def beta(self) -> Floats:
        """Of the Beta posterior. [M]"""
        return self.own * (1 - self.rate) + self.strength * (1 - self.prior_mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftingBeta:
    """The default's beliefs; also the `Fading` of its ledger. A task is moved by at most `max_move` logits unseen."""

    prior: FeaturePrior
    max_age: int
    max_move: float = 2.0

    def at(self, state: State, version: int) -> Beliefs:
        """Every task's posterior at a policy version, given all that was folded."""
        return _beliefs(self, state, version)

    def of(self, state: State, version: int, rows: Ints | slice) -> Standing:
        """Where some tasks stand at a policy version.

        With the prior a task's evidence gives a mean; that is moved, in logits, and what the prior gives of it is taken
        off again: so evidence of 0 of 8 can move too. Where there is no evidence it speaks for 1/2.
        """
        c, learned, kinship = state.columns, state.learned, state.tasks.kinship
        kin, strength = kinship.kin_N[rows], self.prior.strength(learned)
        passes, whole = c.passes[rows], (c.passes + c.fails)[rows]
        lesson = (c.mixed & (version > c.last_version))[rows]
        gain = np.clip(c.gain[rows] + learned.lesson[0] * lesson, -MOST_LOGIT, MOST_LOGIT)
        logit = kin_logits(learned.weight_F, kinship)[kin] + gain
        move = kin_sums(learned.shift_F, kinship)[kin] - c.shift[rows] + gain - c.gain[rows]
        move = np.clip(move, -self.max_move, self.max_move)
        then = strength * special.expit(logit - move) + passes
        moved = np.exp(move) * then
        mean = moved / (moved + strength + whole - then)
        prior_mean = special.expit(logit)
        evidence = mean * (strength + whole) - strength * prior_mean
        rate = np.divide(evidence, whole, out=np.full(len(whole), 0.5), where=whole > 0)
        return Standing(
            own=self._kept(state, version, rows) * whole,
            rate=np.clip(rate, 0.0, 1.0),
            prior_mean=prior_mean,
            strength=strength,
            gain=gain,
        )

    def _kept(self, state: State, version: int, rows: Ints | slice) -> Floats:
        """Share of the tasks' evidence that still holds. [M]"""
        gap = np.maximum(version - state.columns.last_version[rows], 0)
        by_gap = self.prior.discount(state.learned) ** np.arange(int(gap.max(initial=0)) + 1)
        return np.asarray(by_gap[gap], dtype=np.float64)

    def advance(self, state: State, rows: Ints, version: int) -> tuple[Floats, Floats]:
        """See Fading. What is kept is evidence alone."""
        standing = self.of(state, version, rows)
        return standing.own * standing.rate, standing.own * (1 - standing.rate)

    def late_weight(self, lateness: Ints) -> Floats:
        """See Fading."""
        return np.asarray(self.prior.first_discount**lateness, dtype=np.float64)

    def learn(self, after: State, visit: Visit) -> State:
        """Compare what was believed before a visit with what came; late evidence teaches nothing new."""
        before, kinship = visit.before, visit.before.tasks.kinship
        rows = visit.rows[before.columns.last_version[visit.rows] <= visit.version]
        stood = self.of(before, visit.version, rows)
        versions = 0 if before.version < 0 else max(visit.version - before.version, 0)
        learned = self.prior.follow(before.learned, kinship, _visited(after, visit, rows, stood), versions)
        columns = self._moved(after, before, learned, rows, stood, visit.version)
        followed = dataclasses.replace(after, columns=columns, learned=learned)
        seen = np.flatnonzero(followed.columns.visits)
        standing = self.of(followed, after.version, seen)
        known = Known(kin=kinship.kin_N[seen], gain=standing.gain, own=standing.own, rate=standing.rate)
        weight_F = self.prior.weigh(learned, kinship, known)
        return dataclasses.replace(followed, learned=dataclasses.replace(learned, weight_F=weight_F))

    def _moved(
        self, after: State, before: State, learned: Learned, rows: Ints, stood: Standing, version: int
    ) -> Columns:
        """The columns once a visit's own tasks, too, have moved as the visit shows that all did.

        Their evidence before it is of the old place. Left there, tasks that are visited again and again would lag for
        good, and what they gain on it be taken, each time, for a move of all others.
        """
        stands = self.of(dataclasses.replace(before, learned=learned), version, rows)
        c = after.columns.copies()
        c["passes"][rows] += stands.own * stands.rate - stood.own * stood.rate
        c["fails"][rows] += stands.own * (1 - stands.rate) - stood.own * (1 - stood.rate)
        for name in ("passes", "fails"):
            c[name][rows] = np.maximum(c[name][rows], 0.0)  # what is rounded may fall under it
        c["shift"][rows] = kin_sums(learned.shift_F, after.tasks.kinship)[after.tasks.kinship.kin_N[rows]]
        c["gain"][rows] = stands.gain
        return Columns(**c)


def _visited(after: State, visit: Visit, rows: Ints, stood: Standing) -> Visited:
    c = visit.before.columns
    gap = np.maximum(visit.version - c.last_version[rows], 0)
    return Visited(
        kin=after.tasks.kinship.kin_N[rows],
        passes=after.columns.passed[rows] - c.passed[rows],
        size=after.columns.rollouts[rows] - c.rollouts[rows],
        alpha=stood.alpha,
        beta=stood.beta,
        lesson=(c.mixed[rows] & (gap > 0)).astype(np.float64),
        first=c.visits[rows] == 0,
        gap=gap,
        own=c.passes[rows] + c.fails[rows],
        own_rate=stood.rate,
        prior_mean=stood.prior_mean,
    )


@lru_cache(maxsize=2)
def _beliefs(model: DriftingBeta, state: State, version: int) -> Beliefs:
    """Pure, so it is kept: a selection and what explains it ask for the same. States are compared by identity."""
    standing = model.of(state, version, slice(None))
    return Beliefs(standing.alpha, standing.beta, standing.prior_mean, standing.strength)
