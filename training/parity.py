"""Do the engine and the trainer give the same tokens the same probabilities? Asked before any ratio is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.errors import TrainingError
from training.samples import Sample

NUM_WORST = 8


class ParityError(TrainingError):
    """Engine and trainer disagree by more than the run allows. The message shows the worst tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGap:
    """One token that the two see differently; log-probabilities in nats. `sequence` and `position` say where."""

    sequence: int
    position: int
    token_id: int
    engine_logprob: float
    trainer_logprob: float

    @property
    def gap(self) -> float:
        """`|engine - trainer|` in nats."""
        return abs(self.engine_logprob - self.trainer_logprob)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """How far the two are apart. Gaps in nats; `probability_correlation` is Pearson's over the tokens' probabilities
    (MiniMax-M1 reports .987 before and .997 after its float32 head); `worst`: the largest gaps, largest first."""

    num_tokens: int
    gap_mean: float
    gap_max: float
    probability_correlation: float
    worst: tuple[TokenGap, ...]

    def require(self, max_gap: float) -> ParityReport:
        """This report, or ParityError if any gap exceeds `max_gap` nats (or is NaN)."""
        if self.gap_max <= max_gap:
            return self
        lines = "\n".join(
            f"  sequence {t.sequence}, position {t.position}, token {t.token_id}: engine {t.engine_logprob:.6f}, "
            f"trainer {t.trainer_logprob:.6f}"
            for t in self.worst
        )
        raise ParityError(
            f"engine and trainer differ by up to {self.gap_max:.3g} nats over {self.num_tokens} tokens; at most "
            f"{max_gap:g} is allowed. Check that both hold the same weights, precision, temperature and position "
            "numbering. Where the engine only rounds otherwise, raise training.max_engine_gap, and correct for it by "
            f"training.ratio_base=proximal and training.mismatch=tis. Worst tokens:\n{lines}"
        )


def samples_of_version(samples: Sequence[Sample], version: int, token_budget: int) -> list[Sample]:
    """The first samples that policy `version` alone sampled, at most `token_budget` tokens, but at least one sample.

    Empty where the batch holds none: then every token is off-policy, and its ratio says nothing about the engine.
    """
    chosen: list[Sample] = []
    tokens = 0
    for sample in samples:
        if sample.num_loss_tokens and (sample.policy_versions[sample.loss_mask] == version).all():
            tokens += len(sample.token_ids)
            if chosen and tokens > token_budget:
                break
            chosen.append(sample)
    return chosen


def parity_report(
    token_ids: Sequence[Sequence[int]],
    engine_logprobs: Sequence[Sequence[float]],
    trainer_logprobs: Sequence[Sequence[float]],
) -> ParityReport:
    """Compare the log-probabilities (nats) of the same tokens; one inner sequence for each, of equal lengths.

    Raises ParityError when the shapes differ or there is nothing to compare.
    """
    lengths = [[len(x) for x in part] for part in (token_ids, engine_logprobs, trainer_logprobs)]
    if not (lengths[0] == lengths[1] == lengths[2]) or sum(lengths[0]) == 0:
        raise ParityError(
            f"token counts differ or are zero: ids {lengths[0]}, engine {lengths[1]}, trainer {lengths[2]}"
        )
    engine_N, trainer_N = (
        np.concatenate([np.asarray(x, dtype=np.float64) for x in p]) for p in (engine_logprobs, trainer_logprobs)
    )
    gap_N = np.abs(engine_N - trainer_N)
    places = [(s, p) for s, ids in enumerate(token_ids) for p in range(len(ids))]
    worst = np.argsort(-np.nan_to_num(gap_N, nan=np.inf), kind="stable")[:NUM_WORST]
    return ParityReport(
        num_tokens=len(gap_N),
        gap_mean=float(gap_N.mean()),
        gap_max=float(gap_N.max()),
        probability_correlation=_correlation(np.exp(engine_N), np.exp(trainer_N)),
        worst=tuple(
            TokenGap(
                sequence=places[n][0],
                position=places[n][1],
                token_id=token_ids[places[n][0]][places[n][1]],
                engine_logprob=float(engine_N[n]),
                trainer_logprob=float(trainer_N[n]),
            )
            for n in worst
        ),
    )


def _correlation(first_N: np.ndarray, second_N: np.ndarray) -> float:
    """Pearson's, and 1 for equal vectors without variance, where it is undefined."""
    if np.array_equal(first_N, second_N):
        return 1.0
    if first_N.std() == 0 or second_N.std() == 0:
        return 0.0
    return float(np.corrcoef(first_N, second_N)[0, 1])
