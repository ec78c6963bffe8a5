"""Train and held-out tasks share nothing, and a suite that breaks this is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from environments.suites.service_repair.suite import ServiceRepair
from tasks.pools import PoolConfig, PoolError, make_pools


def test_the_two_pools_share_no_task_and_no_combination_of_faults():
    pools = make_pools(ServiceRepair(), PoolConfig(train_tasks=80, held_out_tasks=60, min_horizon=3, max_horizon=12))
    train, held_out = pools.train.tasks, pools.held_out.tasks
    assert (len(train), len(held_out)) == (80, 60)
    assert (pools.train.split, pools.held_out.split) == ("train", "held_out")
    assert not {t.task_id for t in train} & {t.task_id for t in held_out}
    assert not {t.digest for t in train} & {t.digest for t in held_out}
    assert not {t.tags for t in train} & {t.tags for t in held_out}
    assert {t.horizon for t in train} == {t.horizon for t in held_out} == set(range(3, 13))


def test_the_same_settings_make_the_same_pools_and_another_seed_makes_others():
    config = PoolConfig(train_tasks=10, held_out_tasks=10)
    assert make_pools(ServiceRepair(), config) == make_pools(ServiceRepair(), config)
    assert make_pools(ServiceRepair(), replace(config, seed=2)).train.digest != (
        make_pools(ServiceRepair(), config).train.digest
    )


class Leaky(ServiceRepair):
    """A suite that holds nothing out: its held-out tasks are training tasks under other names."""

    def pool(self, *, split, size, seed, min_horizon, max_horizon):
        pool = super().pool(split="train", size=size, seed=seed, min_horizon=min_horizon, max_horizon=max_horizon)
        return replace(pool, split=split, tasks=tuple(replace(t, task_id=f"{split}-{t.task_id}") for t in pool.tasks))


def test_pools_that_share_a_kin_are_refused():
    with pytest.raises(PoolError, match=r"train and held-out share \d+ kinds, such as"):
        make_pools(Leaky(), PoolConfig(train_tasks=10, held_out_tasks=10))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_tasks": 0}, "pool.train_tasks is 0; want at least 1"),
        ({"held_out_tasks": 0}, "pool.held_out_tasks is 0; want at least 1"),
        ({"min_horizon": 9, "max_horizon": 4}, "pool horizons 9..4 are empty; swap them"),
    ],
)
def test_pools_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        PoolConfig(**changes)
