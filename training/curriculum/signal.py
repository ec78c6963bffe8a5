"""How much a group can teach: closed forms in the pass rate p and the group size G.

A group carries gradient when its rewards differ: P = 1 - p^G - (1-p)^G. The advantage mass, the expected sum of
A^2 over a group, depends on the estimator:

- `std`: A = (r - mean) / std (population): every mixed group has mass G, so the expectation is G * P(mixed);
- `mean`: A = r - mean (Dr. GRPO, arXiv:2503.20783): the expectation is (G - 1) p (1 - p).

The Beta versions take the expectation over p ~ Beta(alpha, beta), which is not the value at the mean: a flat
posterior at 0.5 has P(mixed) = 7/9 for G = 8, not 0.99.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from training.advantages import AdvantageConfig

Floats = npt.NDArray[np.float64]
AdvantageMode = Literal["std", "mean"]


def mode_of(advantage: AdvantageConfig) -> AdvantageMode:
    """Which of the two the trainer's estimator is: whether it divides by the group's own standard deviation.

    What else tells estimators apart (the sample std, leave-one-out, the batch's std) is a factor that all groups of
    one size share, so it changes no choice between tasks.
    """
    return "std" if advantage.scale in ("std_population", "std_sample") else "mean"


def mixed_probability(p: Floats, group_size: int) -> Floats:
    """P(not all equal) of `group_size` rollouts at pass rate p[...]."""
    return 1.0 - _power(p, group_size) - _power(1.0 - p, group_size)


def _power(x: Floats, exponent: int) -> Floats:
    """x[...] ** exponent by repeated squaring, several times faster than `pow` on large arrays."""
    out = np.ones_like(x)
    while exponent:
        if exponent & 1:
            out = out * x
        x = x * x
        exponent >>= 1
    return out


def mass_per_rollout(p: Floats, group_size: int, mode: AdvantageMode) -> Floats:
    """Expected sum of A^2 over a group, divided by its rollouts, at pass rate p[...]."""
    if mode == "std":
        return mixed_probability(p, group_size)
    return np.asarray((group_size - 1) / group_size * p * (1.0 - p), dtype=np.float64)


def mean_score_coefficient(p: Floats, group_size: int) -> Floats:
    """E[sqrt(q(1-q))], q = k/G, k ~ Binomial(G, p): the weight of (mean pass score - mean fail score) under `std`.

    With A = (r - q) / sqrt(q(1-q)), the group's mean gradient is sqrt(q(1-q)) times the difference of the mean
    score functions of its passes and of its fails.
    """
    k = np.arange(group_size + 1)
    q = k / group_size
    weights = stats.binom.pmf(k, group_size, np.asarray(p)[..., None])
    return np.asarray((weights * np.sqrt(q * (1 - q))).sum(-1), dtype=np.float64)


def mixed_predictive(alpha: Floats, beta: Floats, group_size: int) -> Floats:
    """P(not all equal) of the next `group_size` rollouts for p ~ Beta(alpha, beta).

    The Beta-binomial's two end terms have one denominator; multiplied out apart, a pool costs one division.
    """
    total = alpha + beta
    passes, fails, every = (np.ones(total.shape) for _ in range(3))
    for j in range(group_size):
        passes *= alpha + j
        fails *= beta + j
        every *= total + j
    return np.asarray(1.0 - (passes + fails) / every, dtype=np.float64)


def predictive_mass(alpha: Floats, beta: Floats, group_size: int, mode: AdvantageMode) -> Floats:
    """Expected sum of A^2 per rollout for p ~ Beta(alpha, beta)."""
    if mode == "std":
        return mixed_predictive(alpha, beta, group_size)
    total = alpha + beta
    return np.asarray((group_size - 1) / group_size * alpha * beta / (total * (total + 1)), dtype=np.float64)


def probability_at_least(alpha: Floats, beta: Floats, threshold: float) -> Floats:
    """P(p >= threshold) for p ~ Beta(alpha, beta)."""
    return np.asarray(special.betaincc(alpha, beta, threshold), dtype=np.float64)


def interval_90(alpha: Floats, beta: Floats) -> tuple[Floats, Floats]:
    """The central 90% interval of Beta(alpha, beta)."""
    return special.betaincinv(alpha, beta, 0.05), special.betaincinv(alpha, beta, 0.95)
