"""The 75% rule, read literally: probe every task with 8 rollouts, retire what is solved >= 75%, train on 20-75%.

With `every=1` the whole pool is probed before every step, as the article has it. That costs more rollouts than it
saves (8 N probes for n G training rollouts) and a gate of 8 samples is noisy: a task of true pass rate .70 is
dropped with probability .55, one of .50 with .14. It is here as the article's rule and as a baseline; see
`posterior` for the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Selection, need
from training.curriculum.baseline import Baseline
from training.curriculum.decide import Pick, check_request, cycle, generator, tally_of
from training.curriculum.ledger import Ints, State

WORDS = ("unprobed", "hard", "band", "retired")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeventyFive(Baseline):
    """Probe all tasks every `every` policy versions; train on those with `low` <= rate < `high` in that probe."""

    probe_size: int = 8
    every: int = 1
    low: float = 0.20
    high: float = 0.75
    name: str = "seventy_five"

    def __post_init__(self) -> None:
        Baseline.__post_init__(self)
        need(self.probe_size >= 1, f"probe_size is {self.probe_size}; want at least 1")
        need(self.every >= 1, f"every is {self.every}; want at least 1 policy version")
        need(0 <= self.low < self.high <= 1, f"band {self.low}..{self.high}; want 0 <= low < high <= 1")

    def gate(self, state: State) -> Ints:
        """0 unprobed, 1 too hard, 2 in the band, 3 retired (an index into WORDS). [N]"""
        c = state.columns
        rate = c.probe_passes / np.maximum(c.probe_size, 1)
        code = 1 + (rate >= self.low).astype(np.int64) + (rate >= self.high)
        return np.where(c.probe_size > 0, code, 0)

    def probes(self, state: State, *, policy_version: int, seed: int) -> Selection:
        """The whole pool when the last probe is `every` versions old, and tasks never probed; else nothing."""
        check_request(self.name, state, 1, policy_version)
        c = state.columns
        due = (c.probe_version < 0) | (policy_version - c.probe_version >= self.every)
        why = f"every task is probed every {self.every} policy version(s)"
        picks = [
            Pick(row=int(r), group_size=self.probe_size, state="probe", why=why, kind="probe", trains=False)
            for r in np.flatnonzero(due)
        ]
        return self.selection(state, picks, policy_version, seed, self._tally(state))

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """`n` groups from the band at random; from the hard, then the retired, tasks if the band is empty."""
        check_request(self.name, state, n, policy_version)
        code = self.gate(state)
        word = next(w for w in (2, 1, 0, 3) if (code == w).any())
        notes = () if word == 2 else (f"no task is in the band; drawing from the {WORDS[word]} ones",)
        rows = cycle(np.flatnonzero(code == word), n, generator(seed, policy_version, 0))
        c = state.columns
        picks = [
            self.pick(
                r,
                WORDS[word],
                f"{c.probe_passes[r]} of {c.probe_size[r]} passed in the probe of version {c.probe_version[r]}; "
                f"the band is {self.low:.0%} to under {self.high:.0%}",
            )
            for r in rows
        ]
        return self.selection(state, picks, policy_version, seed, self._tally(state), notes)

    def _tally(self, state: State) -> tuple[tuple[str, int], ...]:
        return tally_of(WORDS, self.gate(state))

    def decision_line(self, state: State, row: int, policy_version: int) -> str:
        """The newest probe and what the gate makes of it."""
        c = state.columns
        if c.probe_size[row] == 0:
            return "never probed; it is probed before the next step"
        return (
            f"{WORDS[self.gate(state)[row]]}: {c.probe_passes[row]} of {c.probe_size[row]} passed in the probe of "
            f"version {c.probe_version[row]} (under {self.low:.0%} too hard, from {self.high:.0%} retired); "
            f"next probe at version {c.probe_version[row] + self.every}"
        )
