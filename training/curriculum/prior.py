"""What a task is believed to be before its own evidence, and how all tasks move as the policy learns: empirical Bayes.

The pass rate of task i is Beta(m_i s, (1 - m_i) s) with logit(m_i) = sum of w_f over its features f. Learnt at every
fold, and nothing of it set by hand but where it starts:

- the weights `w`: Beta-binomial regression of what is now believed of every task visited, each shrunk to 0 as little
  is known of its feature;
- the strength `s`, how alike tasks of like features are: by the likelihood of each visit after those before, over a
  grid;
- the shift, one number a feature: how far the policy has moved on tasks that bear it. What revisits show beyond what
  was believed is shared out between the features and a lesson (a group that carried gradient, on that very task),
  so that what a task gained from its own lessons is not expected of tasks that had none. How far a version moves at
  all is learnt too, or noise would be taken for movement, or movement for noise;
- the discount, how much of a task's own evidence holds for the next policy version: by the likelihood of revisits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from training.curriculum.base import need
from training.curriculum.features import Floats, Ints, Kinship

STRENGTHS = np.geomspace(0.1, 25.0, 13)
DISCOUNTS = np.array([0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0])
MOST_LOGIT = 6.0


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What evidence has taught beyond single tasks; all zeros before any. Logits, one a feature [F].

    `weight_F` are the prior's weights, `shift_F` all movement so far. `lesson` [2] is what a lesson adds to its task,
    and the precision of that from evidence alone. `moved` [3] sums over versions, older ones counting less, how many
    there were, and the squares of how far each moved all tasks and the tasks of a mean feature. `strength_S` and
    `discount_D` are the log likelihoods of STRENGTHS and DISCOUNTS.
    """

    weight_F: Floats
    shift_F: Floats
    lesson: Floats
    moved: Floats
    strength_S: Floats
    discount_D: Floats

    @staticmethod
    def nothing(num_features: int) -> Learned:
        """Before any evidence."""
        sizes = (num_features, num_features, 2, 3, len(STRENGTHS), len(DISCOUNTS))
        return Learned(*(np.zeros(size) for size in sizes))

    def carried(self, old: Kinship, new: Kinship) -> Learned:
        """To another edition of a pool: features it shares keep what was learnt of them."""
        at = {name: i for i, name in enumerate(old.names)}
        rows = np.array([at.get(name, -1) for name in new.names])
        weight_F, shift_F = (np.where(rows >= 0, v[rows], 0.0) for v in (self.weight_F, self.shift_F))
        return Learned(weight_F, shift_F, self.lesson, self.moved, self.strength_S, self.discount_D)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visited:
    """A visit's tasks [M] as they were believed just before it, and what came: `passes` of `size` rollouts.

    `alpha`, `beta` is the predictive posterior; `lesson` 1 where a lesson lies behind, `first` where nothing does.
    `gap` is versions since the last visit; `own` the weight of the evidence then, `own_rate` what it speaks for now;
    `prior_mean` is the prior's.
    """

    kin: Ints
    passes: Ints
    size: Ints
    alpha: Floats
    beta: Floats
    lesson: Floats
    first: npt.NDArray[np.bool_]
    gap: Ints
    own: Floats
    own_rate: Floats
    prior_mean: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """The tasks [M] that were ever visited: evidence that weighs `own` rollouts speaks for `rate`.

    `gain` is what a task's lessons have added, in logits: its own, not its features'.
    """

    kin: Ints
    gain: Floats
    own: Floats
    rate: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturePrior:
    """Where learning starts.

    Before evidence a pool's mean logit is 0 +- `sd_every`, a feature's weight 0 +- `sd_feature`, a lesson's effect
    0 +- `sd_lesson`; a version moves all tasks by 0 +- `first_move` and those of a feature by a third of it, which
    counts as `move_versions` versions seen. The strength starts at `first_strength`, give or take a factor of e, and
    the discount at `first_discount`, give or take 0.1. The default strength makes the first prior Jeffreys', Beta(1/2,
    1/2): half of the groups of 4 without gradient, between what field data reports (69%, arXiv:2605.07689) and pools
    made to measure. What was learnt of lessons, strength and discount is forgotten by `memory` per version. With
    `learns` false nothing is learnt: every task stands alone, on the prior and the discount that all begin with.
    """

    learns: bool = True
    sd_every: float = 1.5
    sd_feature: float = 0.7
    sd_lesson: float = 0.5
    first_move: float = 0.3
    move_versions: float = 3.0
    memory: float = 0.98
    first_strength: float = 1.0
    first_discount: float = 0.95

    def __post_init__(self) -> None:
        need(0 < self.memory <= 1, f"prior.memory is {self.memory}; want a number in (0, 1]")
        need(self.first_strength > 0, f"prior.first_strength is {self.first_strength}; want > 0 rollouts")
        need(0 < self.first_discount <= 1, f"prior.first_discount is {self.first_discount}; want a number in (0, 1]")

    def strength(self, learned: Learned) -> float:
        """Rollouts that kin are worth: the geometric mean of STRENGTHS by their posterior."""
        guess_S = -0.5 * np.log(STRENGTHS / self.first_strength) ** 2
        return float(np.exp(special.softmax(guess_S + learned.strength_S) @ np.log(STRENGTHS)))

    def discount(self, learned: Learned) -> float:
        """Share of a task's evidence that holds for the next version: the mean of DISCOUNTS by their posterior."""
        guess_D = -0.5 * ((DISCOUNTS - self.first_discount) / 0.1) ** 2
        return float(special.softmax(guess_D + learned.discount_D) @ DISCOUNTS)

    def move_sd_F(self, learned: Learned) -> Floats:
        """How far a version moves the tasks of each feature, in logits (standard deviation). [F]"""
        versions, every, other = learned.moved
        first = np.array([self.first_move**2, (self.first_move / 3) ** 2])
        squares = (np.array([every, other]) + first * self.move_versions) / (versions + self.move_versions)
        sd_F = np.full(len(learned.weight_F), np.sqrt(squares[1]))
        sd_F[0] = np.sqrt(squares[0])
        return sd_F

    def follow(self, learned: Learned, kinship: Kinship, visited: Visited, versions: int) -> Learned:
        """What a visit, `versions` policy versions after the one before, shows of all but the weights."""
        if not self.learns:
            return learned
        fade = self.memory**versions
        shift_F, lesson, moved = self._shift(learned, kinship, visited, fade, versions)
        return Learned(
            weight_F=learned.weight_F,
            shift_F=shift_F,
            lesson=lesson,
            moved=fade * learned.moved + moved,
            strength_S=fade * learned.strength_S + _likelihood_of_strengths(visited, self.discount(learned)),
            discount_D=fade * learned.discount_D + _likelihood_of_discounts(visited, self.strength(learned)),
        )

    def _shift(
        self, learned: Learned, kinship: Kinship, visited: Visited, fade: float, versions: int
    ) -> tuple[Floats, Floats, Floats]:
        """Gauss-Newton: passes k of n have mean n p and Beta-binomial variance; d(n p)/d(logit) = n p (1 - p).

        No surprise is cut off: near a rate of 1 that would cut off failures alone, and move all tasks further up.
        """
        n, total = visited.size, visited.alpha + visited.beta
        p = visited.alpha / total
        again = (visited.gap > 0) & ~visited.first
        spread = 1 + (n - 1) / (total + 1)
        precision = np.where(again, n * p * (1 - p) / spread, 0.0)
        surprise = np.where(again, (visited.passes - n * p) / spread, 0.0)
        square_FF, pull_F = _sums(kinship, visited.kin, precision, surprise)
        cross_F = _sum(kinship, visited.kin, precision * visited.lesson)
        sd_F = self.move_sd_F(learned) * np.sqrt(max(versions, 1e-6))
        covariance_FF = np.linalg.inv(square_FF + np.diag(sd_F**-2))
        known = covariance_FF @ cross_F
        # The lesson's share first, the features' movement integrated out; then theirs, given the lesson's.
        lesson, certainty = learned.lesson
        added = precision @ visited.lesson - cross_F @ known
        pull = surprise @ visited.lesson - known @ pull_F
        certainty = fade * certainty + added
        change = pull / (certainty + self.sd_lesson**-2)
        move_F = covariance_FF @ (pull_F - cross_F * change)
        squares_F = move_F**2 + np.diag(covariance_FF)
        moved = np.zeros(3)
        if versions > 0:
            moved[:] = versions, squares_F[0], squares_F[1:].mean() if len(squares_F) > 1 else 0.0
        return learned.shift_F + move_F, np.array([lesson + change, certainty]), moved

    def weigh(self, learned: Learned, kinship: Kinship, known: Known, *, steps: int = 2) -> Floats:
        """The weights after all evidence. [F]

        Gauss-Newton steps from the weights before; a task counts as it does in Beta-binomial regression.
        """
        if not self.learns:
            return learned.weight_F
        sd_F = np.full(len(kinship.names), self.sd_feature)
        sd_F[0] = self.sd_every
        scatter = 1 / (1 + self.strength(learned))
        effective = known.own / (1 + np.maximum(known.own - 1, 0.0) * scatter)
        weight_F = learned.weight_F
        for _ in range(steps):
            mean = special.expit(kin_logits(weight_F, kinship)[known.kin] + known.gain)
            pull = effective * (known.rate - mean)
            square_FF, pull_F = _sums(kinship, known.kin, effective * mean * (1 - mean), pull)
            step_F = np.linalg.solve(square_FF + np.diag(sd_F**-2), pull_F - weight_F * sd_F**-2)
            weight_F = np.clip(weight_F + step_F, -MOST_LOGIT, MOST_LOGIT)
        return np.asarray(weight_F, dtype=np.float64)


def kin_sums(value_F: Floats, kinship: Kinship) -> Floats:
    """What the features of each kin add up to. [K]"""
    return np.asarray(kinship.bears_KF @ value_F, dtype=np.float64)


def kin_logits(weight_F: Floats, kinship: Kinship) -> Floats:
    """The prior's mean for each kin, in logits within MOST_LOGIT. [K]"""
    return np.clip(kin_sums(weight_F, kinship), -MOST_LOGIT, MOST_LOGIT)


def _by_kin(kinship: Kinship, kin: Ints, values: Floats) -> Floats:
    sums = np.bincount(kin, weights=values, minlength=len(kinship.bears_KF.indptr) - 1)
    return np.asarray(sums, dtype=np.float64)


def _sum(kinship: Kinship, kin: Ints, values: Floats) -> Floats:
    """X' values [F] over tasks [M] of these kin, where X says which features each bears."""
    return np.asarray(kinship.bears_KF.T @ _by_kin(kinship, kin, values))


def _sums(kinship: Kinship, kin: Ints, precision: Floats, pull: Floats) -> tuple[Floats, Floats]:
    """X' diag(precision) X [F, F] and X' pull [F] over tasks [M] of these kin; X as in `_sum`."""
    weighted = kinship.bears_KF.T.multiply(_by_kin(kinship, kin, precision)[None, :])
    return (weighted @ kinship.bears_KF).toarray(), _sum(kinship, kin, pull)


def _likelihood_of_strengths(visited: Visited, discount: float) -> Floats:
    """Revisits count too: tasks that were all brought to the same end are more alike than they were at first sight."""
    at = visited.first | (visited.gap > 0)
    own = np.where(visited.first, 0.0, visited.own * discount**visited.gap)[at][:, None]
    rate, mean = visited.own_rate[at][:, None], visited.prior_mean[at][:, None]
    return _log_likelihood(visited, at, own * rate + STRENGTHS * mean, own * (1 - rate) + STRENGTHS * (1 - mean))


def _likelihood_of_discounts(visited: Visited, strength: float) -> Floats:
    at = ~visited.first & (visited.gap > 0)
    own = visited.own[at][:, None] * DISCOUNTS ** visited.gap[at][:, None]
    rate, mean = visited.own_rate[at][:, None], visited.prior_mean[at][:, None]
    return _log_likelihood(visited, at, own * rate + strength * mean, own * (1 - rate) + strength * (1 - mean))


def _log_likelihood(visited: Visited, at: npt.NDArray[np.bool_], alpha: Floats, beta: Floats) -> Floats:
    """Sum over tasks of log P(passes of size), Beta-binomial, up to a constant, for candidates [M, C]. [C]"""
    k, n = visited.passes[at][:, None], visited.size[at][:, None]
    return np.asarray((special.betaln(alpha + k, beta + n - k) - special.betaln(alpha, beta)).sum(0))
