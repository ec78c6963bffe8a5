"""A number with its interval. The unit of chance is the task: attempts at one task are not independent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit
from scipy.stats import norm, t

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """`mean` with its interval `low`..`high`, from `n` units (tasks, unless said otherwise)."""

    mean: float
    low: float
    high: float
    n: int


def wilson(successes: Floats, trials: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Wilson's score interval for independent trials, elementwise. Source: Wilson 1927; Brown, Cai, DasGupta 2001."""
    z = float(norm.ppf(0.5 + confidence / 2))
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return centre - half, centre + half


def cluster_rates(successes_SG: Floats, trials_SG: Floats, confidence: float) -> tuple[Floats, Floats, Floats]:
    """Pooled rates over G clusters, for S data sets at once: (rates[S], low[S], high[S]).

    The ratio estimator sum(s)/sum(n) with its cluster-robust variance G/(G-1) * sum((s - p n)^2) / sum(n)^2, taken
    to the logit scale with Student's t on G-1 degrees. Where the clusters show no spread (p is 0 or 1, or one
    cluster) Wilson's interval over the clusters stands in. Every data set needs at least one trial.
    """
    has = trials_SG > 0
    groups = has.sum(axis=1)
    total = trials_SG.sum(axis=1)
    rates = successes_SG.sum(axis=1) / total
    residuals = np.where(has, successes_SG - rates[:, None] * trials_SG, 0.0)
    variance = groups / np.maximum(groups - 1, 1) * (residuals**2).sum(axis=1) / total**2
    low, high = wilson(rates * groups, groups.astype(np.float64), confidence)
    spread = (variance > 1e-18) & (groups > 1) & (rates > 0) & (rates < 1)
    centre = logit(np.where(spread, rates, 0.5))
    half = t.ppf(0.5 + confidence / 2, np.maximum(groups - 1, 1)) * np.sqrt(variance)
    half = half / np.where(spread, rates * (1 - rates), 1.0)
    low, high = np.where(spread, expit(centre - half), low), np.where(spread, expit(centre + half), high)
    return rates, low, high


def mean_over_tasks(values_T: Floats, *, confidence: float = 0.95) -> Estimate:
    """The mean of one value in [0, 1] a task, with the interval of `cluster_rates`. Needs at least one task."""
    rates, low, high = cluster_rates(values_T[None, :], np.ones((1, len(values_T))), confidence)
    return Estimate(mean=float(rates[0]), low=float(low[0]), high=float(high[0]), n=len(values_T))


def rate_by_task(successes: dict[str, float], trials: dict[str, float], *, confidence: float = 0.95) -> Estimate | None:
    """A pooled rate with the interval of `cluster_rates`; None when there is not one trial. `n` is tasks."""
    tasks = [task for task in trials if trials[task] > 0]
    if not tasks:
        return None
    rates, low, high = cluster_rates(
        np.array([[successes.get(task, 0.0) for task in tasks]], dtype=np.float64),
        np.array([[trials[task] for task in tasks]], dtype=np.float64),
        confidence,
    )
    return Estimate(mean=float(rates[0]), low=float(low[0]), high=float(high[0]), n=len(tasks))
