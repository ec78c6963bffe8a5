"""State drift: do errors breed errors? Rates conditional on the turn before, with a null that difficulty cannot fool.

With independent errors and tasks of unlike difficulty, P(err|err) exceeds P(err|ok) without any dependence at all.
So the raw difference is shown beside its distribution when each rollout's own errors are shuffled in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.evaluation.estimates import Estimate, rate_by_task
from training.evaluation.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """P(err|err) - P(err|ok) over pairs of neighbouring turns, and what shuffling within rollouts leaves of it.

    `corrected` = raw - null mean: what the order of errors adds. `p_value` is one-sided (errors attract errors).
    """

    raw: float
    null_mean: float
    null_low: float
    null_high: float
    corrected: float
    p_value: float
    num_permutations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Error rates by the state of the turn before. Exact repeats are left out; `repeat_share` is theirs of all turns.

    The turn before the first counts as ok. `bursts` maps a burst's length in turns to how many there were.
    Fields are None where no turn could tell (no error was ever made).
    """

    after_ok: Estimate | None
    after_error: Estimate | None
    recovery: Estimate | None
    error_rate: Estimate | None
    bursts: tuple[tuple[int, int], ...]
    mean_burst: float | None
    repeat_share: float
    loop_share: float
    excess: Excess | None

    @property
    def long_run_error_rate(self) -> float | None:
        """The share of turns in error that these two rates lead to in the long run, None where one is not known."""
        if self.after_ok is None or self.after_error is None or self.after_ok.mean + 1 == self.after_error.mean:
            return None
        return stationary_error_rate(self.after_ok.mean, self.after_error.mean)


def stationary_error_rate(after_ok: float, after_error: float) -> float:
    """e / (e + 1 - s) for e = P(err|ok), s = P(err|err): the share of turns in error in the long run."""
    return after_ok / (after_ok + 1 - after_error)


def _padded(sequences: Sequence[Sequence[bool]]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """(errors[R, T], valid[R, T]) from sequences of unlike length."""
    width = max((len(s) for s in sequences), default=0)
    errors = np.zeros((len(sequences), width), dtype=np.bool_)
    valid = np.zeros_like(errors)
    for row, sequence in enumerate(sequences):
        errors[row, : len(sequence)] = sequence
        valid[row, : len(sequence)] = True
    return errors, valid


def _difference(errors_RT: npt.NDArray[np.bool_], valid_RT: npt.NDArray[np.bool_]) -> float:
    both = valid_RT[:, 1:]
    now, before = errors_RT[:, 1:], errors_RT[:, :-1]
    num_err, num_ok = (before & both).sum(), (~before & both).sum()
    if num_err == 0 or num_ok == 0:
        return float("nan")
    return float((now & before & both).sum() / num_err - (now & ~before & both).sum() / num_ok)


def excess_over_shuffled(
    sequences: Sequence[Sequence[bool]], *, seed: int, num_permutations: int = 400, confidence: float = 0.95
) -> Excess | None:
    """The permutation null within rollouts. None when the pairs do not hold both an error and an ok to come from."""
    errors, valid = _padded(sequences)
    raw = _difference(errors, valid) if errors.shape[1] > 1 else float("nan")
    if np.isnan(raw):
        return None
    rng = np.random.default_rng(seed)
    null = np.empty(num_permutations)
    for i in range(num_permutations):
        keys = np.where(valid, rng.random(errors.shape), 2.0)  # padding sorts last and stays there
        null[i] = _difference(np.take_along_axis(errors, np.argsort(keys, axis=1), axis=1), valid)
    null = null[~np.isnan(null)]
    low, high = np.quantile(null, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return Excess(
        raw=raw,
        null_mean=float(null.mean()),
        null_low=float(low),
        null_high=float(high),
        corrected=raw - float(null.mean()),
        p_value=float((1 + (null >= raw - 1e-12).sum()) / (1 + len(null))),
        num_permutations=num_permutations,
    )


def burst_lengths(errors: Sequence[bool]) -> list[int]:
    """Lengths in turns of the runs of consecutive errors."""
    out, length = [], 0
    for error in [*errors, False]:
        if error:
            length += 1
        elif length:
            out.append(length)
            length = 0
    return out


def _looped(actions: Sequence[str]) -> bool:
    """The same command three times in a row."""
    return any(a == b == c for a, b, c in zip(actions, actions[1:], actions[2:], strict=False))


def measure_drift(runs: Sequence[Run], *, seed: int, confidence: float = 0.95, num_permutations: int = 400) -> Drift:
    """All drift statistics of a set of rollouts; intervals are clustered by task."""
    counts: dict[str, Counter[str]] = {
        name: Counter() for name in ("ok", "ok_err", "err", "err_err", "err_ok", "turns")
    }
    counts["errors"] = Counter()
    sequences = [run.without_repeats() for run in runs]
    for run, errors in zip(runs, sequences, strict=True):
        for before, now in zip((False, *errors), errors, strict=False):
            state = "err" if before else "ok"
            counts[state][run.task_id] += 1
            counts["turns"][run.task_id] += 1
            counts["errors"][run.task_id] += now
            counts[f"{state}_err"][run.task_id] += now
            counts["err_ok"][run.task_id] += before and not now
    bursts = Counter(n for errors in sequences for n in burst_lengths(errors))
    num_turns = sum(len(run.errors) for run in runs)

    def rate(hits: str, of: str) -> Estimate | None:
        return rate_by_task(dict(counts[hits]), dict(counts[of]), confidence=confidence)

    return Drift(
        after_ok=rate("ok_err", "ok"),
        after_error=rate("err_err", "err"),
        recovery=rate("err_ok", "err"),
        error_rate=rate("errors", "turns"),
        bursts=tuple(sorted(bursts.items())),
        mean_burst=sum(k * v for k, v in bursts.items()) / bursts.total() if bursts else None,
        repeat_share=sum(e == "repeat" for run in runs for e in run.errors) / num_turns if num_turns else 0.0,
        loop_share=sum(_looped(run.actions) for run in runs) / len(runs) if runs else 0.0,
        excess=excess_over_shuffled(sequences, seed=seed, num_permutations=num_permutations, confidence=confidence),
    )
