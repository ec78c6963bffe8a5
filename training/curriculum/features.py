"""What tasks have in common: the features by which what one task taught is carried over to others.

Features are single (the suite, each tag, each step of horizon), so that two tasks are akin by degrees: with several
tags a task, hardly two tasks bear all the same ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from environments.types import TaskSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EVERY = "every task"
MOST_FEATURES = 256


def features_of(task: TaskSpec) -> tuple[str, ...]:
    """Suite, tags, and which steps of half an octave the horizon has reached.

    Steps, not bands: what is learnt of horizon 6 then holds for 7 too, until something speaks for another step.

    >>> from environments.types import Limits
    >>> features_of(TaskSpec(task_id="t", suite="service_repair", instruction="", seed=1, horizon=6,
    ...                      limits=Limits(max_turns=9, max_tokens=99), tags=("fault:wrong_port",)))
    ('suite:service_repair', 'horizon>=2', 'horizon>=3', 'horizon>=4', 'horizon>=6', 'fault:wrong_port')
    """
    steps = [math.ceil(2 ** (half / 2)) for half in range(2, 2 + int(2 * math.log2(max(task.horizon, 1))))]
    reached = [f"horizon>={step}" for step in steps if step <= task.horizon]
    return (f"suite:{task.suite}", *reached, *task.tags)


@dataclass(frozen=True, slots=True, eq=False)
class Kinship:
    """Which features each task bears. Tasks that bear the same ones are of one kin.

    `names` [F] are the features that tell tasks apart, after EVERY, which all bear. `kin_N` is each task's kin,
    `bears_KF` is 1 where a kin bears a
    feature.
    """

    names: tuple[str, ...]
    kin_N: Ints
    bears_KF: sparse.csr_array

    @staticmethod
    def of(features: Sequence[Sequence[str]]) -> Kinship:
        """From each task's features. Those of one task alone or of all tell nothing; the commonest 255 are kept."""
        counts = Counter(name for bearers in features for name in set(bearers) - {EVERY})
        telling = [name for name, count in counts.items() if 2 <= count < len(features)]
        kept = sorted(telling, key=lambda name: (-counts[name], name))[: MOST_FEATURES - 1]
        names = (EVERY, *sorted(kept))
        number = {name: i for i, name in enumerate(names)}
        kin: dict[tuple[int, ...], int] = {}
        kin_N = np.array(
            [
                kin.setdefault(tuple(sorted({number[name] for name in bearers if name in number} | {0})), len(kin))
                for bearers in features
            ],
            dtype=np.int64,
        )
        kin_E = np.repeat(np.arange(len(kin)), [len(bearers) for bearers in kin])
        feature_E = np.array([f for bearers in kin for f in bearers], dtype=np.int64)
        bears = sparse.csr_array((np.ones(len(kin_E)), (kin_E, feature_E)), shape=(len(kin), len(names)))
        return Kinship(names, kin_N, bears)

    def borne_by(self, row: int) -> tuple[int, ...]:
        """The features of one task, as indices into `names`."""
        kin = int(self.kin_N[row])
        return tuple(int(f) for f in self.bears_KF.indices[self.bears_KF.indptr[kin] : self.bears_KF.indptr[kin + 1]])

    def bearers(self, feature: int) -> npt.NDArray[np.bool_]:
        """Which tasks bear a feature. [N]"""
        wanted_F = np.arange(len(self.names)) == feature
        return np.asarray(self.bears_KF @ wanted_F > 0)[self.kin_N]

    def names_of_tasks(self) -> list[list[str]]:
        """Each task's kept features by name: `of` gives the same kinship from them."""
        kin = [
            [self.names[f] for f in self.bears_KF.indices[start:end]]
            for start, end in zip(self.bears_KF.indptr[:-1], self.bears_KF.indptr[1:], strict=True)
        ]
        return [kin[k] for k in self.kin_N]
