"""Shared by all strategies: turning chosen rows into decisions, and filling a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Decision, Kind, need
from training.curriculum.beliefs import Beliefs
from training.curriculum.ledger import Floats, Ints, State
from training.curriculum.signal import AdvantageMode, interval_90, predictive_mass


def check_owner(strategy: str, state: State) -> None:
    """Raise CurriculumError on a state another strategy made: its counts mean something else."""
    need(
        state.strategy == strategy,
        f"this state was made by strategy {state.strategy!r}, not {strategy!r}; go on with {state.strategy!r}, or "
        "start anew and fold the saved evidence",
    )


def check_request(strategy: str, state: State, n: int, policy_version: int) -> None:
    """Raise CurriculumError on a request the strategy cannot serve."""
    check_owner(strategy, state)
    need(n >= 1, f"select was asked for {n} groups; want at least 1")
    need(
        policy_version >= state.version,
        f"select was asked for policy version {policy_version}, but evidence of version {state.version} is folded; "
        "give the version that will be rolled out",
    )


def generator(seed: int, policy_version: int, purpose: int) -> np.random.Generator:
    """Randomness that depends on nothing but its arguments; `purpose` keeps streams of one seed apart."""
    return np.random.default_rng([seed, policy_version, purpose])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Rows chosen together for one reason: group size, a word for their state, and why."""

    row: int
    group_size: int
    state: str
    why: str
    kind: Kind = "training"
    trains: bool = True


def decisions_of(state: State, beliefs: Beliefs, picks: Sequence[Pick], mode: AdvantageMode) -> tuple[Decision, ...]:
    """Attach what was believed to each pick."""
    rows = np.array([p.row for p in picks], dtype=np.int64)
    alpha, beta = beliefs.alpha_N[rows], beliefs.beta_N[rows]
    low, high = interval_90(alpha, beta)
    size = np.array([p.group_size for p in picks], dtype=np.int64)
    signal = np.zeros(len(picks))
    for g in np.unique(size):
        signal[size == g] = predictive_mass(alpha[size == g], beta[size == g], int(g), mode)
    return tuple(
        Decision(
            task_id=state.tasks.ids[pick.row],
            task_digest=state.tasks.digests[pick.row],
            kind=pick.kind,
            group_size=pick.group_size,
            state=pick.state,
            why=pick.why,
            alpha=float(alpha[i]),
            beta=float(beta[i]),
            mean=float(alpha[i] / (alpha[i] + beta[i])),
            low=float(low[i]),
            high=float(high[i]),
            signal=float(signal[i]),
            trains=pick.trains,
        )
        for i, pick in enumerate(picks)
    )


def tally_of(words: Sequence[str], code_N: Ints) -> tuple[tuple[str, int], ...]:
    """How many tasks bear each word, where task i bears `words[code_N[i]]`."""
    counts = np.bincount(code_N, minlength=len(words))
    return tuple((word, int(count)) for word, count in zip(words, counts, strict=True))


def cycle(rows: Ints, n: int, rng: np.random.Generator) -> Ints:
    """`n` rows drawn without replacement; when n exceeds them, whole shuffles follow one another."""
    need(len(rows) > 0, "there is no task to draw from")
    rounds = -(-n // len(rows))
    return np.concatenate([rng.permutation(rows) for _ in range(rounds)])[:n]


def top_rows(score: Floats, n: int) -> Ints:
    """The `n` highest rows, best first; rows repeat from the top when there are fewer. Taken rows score below 0."""
    n_free = int((score >= 0).sum())
    if n_free == 0 or n <= 0:
        return np.zeros(0, dtype=np.int64)
    k = min(n, n_free)
    part = np.argpartition(-score, k - 1)[:k]
    best = part[np.lexsort((part, -score[part]))]
    return np.resize(best, n)
