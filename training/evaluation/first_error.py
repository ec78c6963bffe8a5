"""When the first error comes, with success as a competing event; and what kinds of error come when.

A rollout that succeeds without an error will never err: it has left the race, it is not censored. Kaplan-Meier with
censoring at success answers another question and overstates the answer (tested).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import norm

from training.evaluation.runs import Run

Ending = Literal["error", "success", "censored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incidence:
    """Aalen-Johansen curves at turns 1..T: the share that has erred / has succeeded without error by turn t.

    `error_low`, `error_high`: pointwise interval of the error curve. `at_risk[t]`: rollouts that reach turn t+1 with
    neither behind them.
    """

    turns: tuple[int, ...]
    error: tuple[float, ...]
    error_low: tuple[float, ...]
    error_high: tuple[float, ...]
    success: tuple[float, ...]
    at_risk: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsByTurn:
    """`shares[i][t]`: of the rollouts that took turn t+1, the share with an error of `classes[i]` in it."""

    classes: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]
    num_running: tuple[int, ...]


def first_event(run: Run) -> tuple[int, Ending]:
    """(turn from 1, what): the first error, success without one, or the end of a run that had neither."""
    for turn, error in enumerate(run.errors, 1):
        if error is not None:
            return turn, "error"
    return max(len(run.errors), 1), "success" if run.passed else "censored"


def cumulative_incidence(events: Sequence[tuple[int, Ending]], *, confidence: float = 0.95) -> Incidence:
    """Aalen-Johansen: I_k(t) = sum over t_j <= t of S(t_j-1) d_kj / n_j. Raises ValueError on no events.

    Variance by the delta method (Marubini and Valsecchi 1995, eq. 10.12); without censoring it is p(1-p)/n.
    """
    if not events:
        raise ValueError("cumulative incidence of no rollouts; give at least one")
    last = max(turn for turn, _ in events)
    times = np.array([turn for turn, _ in events])
    d_error = np.bincount(times[[e == "error" for _, e in events]], minlength=last + 1)[1:]
    d_success = np.bincount(times[[e == "success" for _, e in events]], minlength=last + 1)[1:]
    leaving = np.bincount(times, minlength=last + 1)[1:]
    at_risk = len(events) - np.concatenate([[0], np.cumsum(leaving)[:-1]])
    d_any = d_error + d_success
    survival = np.cumprod(1 - d_any / at_risk)
    before = np.concatenate([[1.0], survival[:-1]])
    error = np.cumsum(before * d_error / at_risk)
    success = np.cumsum(before * d_success / at_risk)
    half = norm.ppf(0.5 + confidence / 2) * np.sqrt(_variance(error, before, d_error, d_any, at_risk))
    return Incidence(
        turns=tuple(range(1, last + 1)),
        error=tuple(error.tolist()),
        error_low=tuple(np.clip(error - half, 0, 1).tolist()),
        error_high=tuple(np.clip(error + half, 0, 1).tolist()),
        success=tuple(success.tolist()),
        at_risk=tuple(int(n) for n in at_risk),
    )


def _variance(
    curve: np.ndarray, before: np.ndarray, d_cause: np.ndarray, d_any: np.ndarray, at_risk: np.ndarray
) -> np.ndarray:
    left = at_risk - d_any
    any_term = np.divide(d_any, at_risk * left, out=np.zeros(len(curve)), where=left > 0)
    own_term = before**2 * (at_risk - d_cause) * d_cause / at_risk**3
    cross = before * d_cause / at_risk**2
    out = np.empty(len(curve))
    for t in range(len(curve)):
        gap = curve[t] - curve[: t + 1]
        out[t] = (gap**2 * any_term[: t + 1]).sum() + own_term[: t + 1].sum() - 2 * (gap * cross[: t + 1]).sum()
    return np.maximum(out, 0.0)


def errors_by_turn(runs: Sequence[Run]) -> ErrorsByTurn:
    """Error classes against the turn they come in: a typo early, a lost plan late."""
    last = max((len(run.errors) for run in runs), default=0)
    running = np.zeros(last, dtype=np.int64)
    found: dict[str, np.ndarray] = {}
    for run in runs:
        running[: len(run.errors)] += 1
        for turn, error in enumerate(run.errors):
            if error is not None:
                found.setdefault(error, np.zeros(last))[turn] += 1
    classes = tuple(sorted(found, key=lambda name: -float(found[name].sum())))
    shares = tuple(tuple((found[name] / np.maximum(running, 1)).tolist()) for name in classes)
    return ErrorsByTurn(classes=classes, shares=shares, num_running=tuple(int(n) for n in running))


def context_by_turn(runs: Sequence[Run]) -> tuple[float, ...]:
    """Mean tokens in the context at the end of turn t+1, over the rollouts that took it and whose tokens are known."""
    last = max((len(run.context_tokens) for run in runs), default=0)
    out: list[float] = []
    for turn in range(last):
        known = [r.context_tokens[turn] for r in runs if len(r.context_tokens) > turn and r.context_tokens[turn] >= 0]
        if not known:
            break
        out.append(sum(known) / len(known))
    return tuple(out)
