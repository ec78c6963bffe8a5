"""Guards: stop before a broken update reaches the weights, and name the samples that broke it."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from statistics import median

import numpy as np

from training.errors import TrainingError
from training.reports import TokenTable

WINDOW = 32
MIN_HISTORY = 8


class TrainingHalted(TrainingError):
    """An update that must not be applied. The weights are those before it; `sample_ids` name the offenders."""

    def __init__(self, reason: str, sample_ids: tuple[str, ...]) -> None:
        super().__init__(f"{reason}; offending samples: {', '.join(sample_ids) or 'none found alone'}")
        self.reason = reason
        self.sample_ids = sample_ids

    def save(self, path: Path) -> None:
        """Write the reason and the sample ids as JSON beside the run's other artifacts."""
        path.write_text(json.dumps({"reason": self.reason, "sample_ids": list(self.sample_ids)}, indent=2) + "\n")


class GradientGuard:
    """Watches the norms of past updates. State: the last 32 norms above 0, saved with checkpoints."""

    def __init__(self, spike_factor: float) -> None:
        self.spike_factor = spike_factor
        self.norms: deque[float] = deque(maxlen=WINDOW)

    def check(self, loss: float, grad_norm: float, table: TokenTable, sample_ids: tuple[str, ...]) -> None:
        """Raise TrainingHalted on a loss or norm that is not finite, or a spike; else remember the norm."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            # finite tokens can still overflow in the sum: then the largest are to blame
            offenders = not_finite_samples(table, sample_ids) or largest_samples(table, sample_ids)
            raise TrainingHalted(
                f"loss {loss}, gradient norm {grad_norm}: not finite. Look at the samples named; if they are sound, "
                "lower training.learning_rate",
                offenders,
            )
        if len(self.norms) >= MIN_HISTORY and grad_norm > self.spike_factor * median(self.norms):
            raise TrainingHalted(
                f"gradient norm {grad_norm:.4g} is more than {self.spike_factor:g} times the median "
                f"{median(self.norms):.4g} of the last {len(self.norms)} updates. Look at the samples named; if they "
                "are sound, raise training.spike_factor",
                largest_samples(table, sample_ids),
            )
        if grad_norm > 0:  # an update whose every token was clipped says nothing of how large a sound one is
            self.norms.append(grad_norm)


def not_finite_samples(table: TokenTable, sample_ids: tuple[str, ...]) -> tuple[str, ...]:
    """The samples with a token whose log-probability or gradient is NaN or infinite."""
    bad_N = ~(np.isfinite(table.logprob_N) & np.isfinite(table.gradient_N) & np.isfinite(table.coefficient_N))
    return tuple(sample_ids[i] for i in np.unique(table.sample_N[bad_N]))


def largest_samples(table: TokenTable, sample_ids: tuple[str, ...], count: int = 4) -> tuple[str, ...]:
    """The `count` samples with the largest summed logit-gradient norm, the largest first."""
    totals = np.bincount(table.sample_N, weights=table.gradient_N, minlength=len(sample_ids))
    return tuple(sample_ids[i] for i in np.argsort(-totals, kind="stable")[:count])
