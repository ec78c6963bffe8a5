"""Two policies on the same tasks, paired by task: task means, sign-flip test, bootstrap over tasks.

Attempts at one task are not independent, so tests over attempts (McNemar's) reject too often; the task is the unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.evaluation.estimates import Estimate, mean_over_tasks

_EXACT_UP_TO = 14


class ComparisonError(ValueError):
    """Two results that cannot be paired. The message names the tasks that are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandGain:
    """The comparison within one band of horizons `low`..`high`."""

    low: int
    high: int
    before: Estimate
    after: Estimate
    gain: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`gain` = mean over tasks of (after - before), in [-1, 1]. `p_value`: two-sided sign-flip test of no gain."""

    before: Estimate
    after: Estimate
    gain: Estimate
    p_value: float
    by_band: tuple[BandGain, ...]


def _bootstrap(
    values_T: npt.NDArray[np.float64], rng: np.random.Generator, resamples: int, confidence: float
) -> Estimate:
    """The mean with a percentile interval over resampled tasks."""
    picks = rng.integers(0, len(values_T), size=(resamples, len(values_T)))
    low, high = np.quantile(values_T[picks].mean(axis=1), [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Estimate(mean=float(values_T.mean()), low=float(low), high=float(high), n=len(values_T))


def sign_flip_p_value(differences_T: npt.NDArray[np.float64], rng: np.random.Generator, resamples: int) -> float:
    """P(|mean| as large under random signs), two-sided; exact up to 14 tasks. Source: Fisher 1935, ch. 21."""
    num = len(differences_T)
    observed = abs(differences_T.mean()) - 1e-12
    if num <= _EXACT_UP_TO:
        codes = np.arange(2**num)[:, None] >> np.arange(num) & 1
        means = ((2.0 * codes - 1) * differences_T).mean(axis=1)
        return float((np.abs(means) >= observed).mean())
    signs = rng.choice(np.array([-1.0, 1.0]), size=(resamples, num))
    return float((1 + (np.abs((signs * differences_T).mean(axis=1)) >= observed).sum()) / (1 + resamples))


def _task_means(rewards: Mapping[str, Sequence[float]], tasks: Sequence[str]) -> npt.NDArray[np.float64]:
    return np.array([sum(rewards[task]) / len(rewards[task]) for task in tasks], dtype=np.float64)


def _check_pairs(before: Mapping[str, Sequence[float]], after: Mapping[str, Sequence[float]]) -> list[str]:
    odd = sorted(set(before) ^ set(after))
    if odd:
        raise ComparisonError(
            f"{len(odd)} tasks are in one result only ({', '.join(odd[:5])}); benchmark both on one pool"
        )
    empty = sorted(t for t in before if not before[t] or not after[t])
    if empty or not before:
        raise ComparisonError(f"tasks without a judged attempt: {', '.join(empty[:5]) or 'all'}; refill or drop them")
    return sorted(before)


def compare(
    before: Mapping[str, Sequence[float]],
    after: Mapping[str, Sequence[float]],
    *,
    horizons: Mapping[str, int],
    bands: Sequence[int],
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Comparison:
    """Pair rewards (task id -> one per judged attempt) by task. `bands` are the upper ends of horizon bands.

    Raises ComparisonError when the tasks differ or one has no judged attempt.
    """
    tasks = _check_pairs(before, after)
    rng = np.random.default_rng(seed)
    b, a = _task_means(before, tasks), _task_means(after, tasks)
    horizon = np.array([horizons[task] for task in tasks])

    def estimates(mask: npt.NDArray[np.bool_]) -> tuple[Estimate, Estimate, Estimate]:
        levels = (mean_over_tasks(means[mask], confidence=confidence) for means in (b, a))
        return next(levels), next(levels), _bootstrap((a - b)[mask], rng, resamples, confidence)

    whole = estimates(np.ones(len(tasks), dtype=np.bool_))
    by_band: list[BandGain] = []
    bottom = int(horizon.min())
    for top in sorted({*bands, int(horizon.max())}):
        mask = (horizon >= bottom) & (horizon <= top)
        if mask.any():
            inner = estimates(mask)
            by_band.append(BandGain(low=bottom, high=top, before=inner[0], after=inner[1], gain=inner[2]))
            bottom = top + 1
    p_value = sign_flip_p_value(a - b, rng, resamples)
    return Comparison(before=whole[0], after=whole[1], gain=whole[2], p_value=p_value, by_band=tuple(by_band))
