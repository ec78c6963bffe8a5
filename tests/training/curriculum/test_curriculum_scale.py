"""A large pool: what a choice and a fold cost in memory. (`tests/benchmarks/curriculum.py scale` measures the time.)"""

from __future__ import annotations

import tracemalloc

import numpy as np

from training.curriculum.base import Evidence
from training.curriculum.ledger import Columns, State, TaskIndex
from training.curriculum.prior import Learned
from training.curriculum.strategies import build

MIB = 2**20


def a_state(num_tasks: int) -> State:
    """A pool of that many tasks of 200 kin, nothing known of them."""
    numbers = range(num_tasks)
    index = TaskIndex.of(
        [f"task-{i:06d}" for i in numbers], [f"{i:064x}" for i in numbers], [[f"kin-{i % 200}"] for i in numbers]
    )
    learned = Learned.nothing(len(index.kinship.names))
    return State(strategy="posterior", tasks=index, columns=Columns.empty(num_tasks), learned=learned)


def peak_mib(num_tasks: int) -> float:
    """The most memory that a pool, three choices of 64 groups and their folds hold at once."""
    strategy, rng = build("posterior"), np.random.default_rng(0)
    tracemalloc.start()
    try:
        state = a_state(num_tasks)
        for version in range(3):
            chosen = strategy.select(state, 64, policy_version=version, seed=0)
            state = strategy.fold(
                state,
                [
                    Evidence(
                        rollout_id=f"{version}.{group}.{index}",
                        group_id=f"{version}.{group}",
                        task_id=decision.task_id,
                        task_digest=decision.task_digest,
                        policy_version=version,
                        passed=bool(rng.random() < 0.5),
                        reward=0.0,
                    )
                    for group, decision in enumerate(chosen.decisions)
                    for index in range(decision.group_size)
                ],
            )
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_tasks_take_less_than_200_mib_and_memory_grows_no_faster_than_the_pool() -> None:
    small, large = peak_mib(10_000), peak_mib(100_000)
    assert large < 200
    assert large < 12 * small
