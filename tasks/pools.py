"""The two task pools of a run: one to train on, one held out."""

from __future__ import annotations

from dataclasses import dataclass

from environments.suites.base import Suite
from environments.types import TaskPool


class PoolError(ValueError):
    """Pools that cannot be used together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Which tasks. Horizons are turns of the reference solution, both ends included."""

    suite: str = "service_repair"
    train_tasks: int = 200
    held_out_tasks: int = 120
    min_horizon: int = 3
    max_horizon: int = 12
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("train_tasks", "held_out_tasks", "min_horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"pool.{name} is {getattr(self, name)}; want at least 1")
        if self.min_horizon > self.max_horizon:
            raise ValueError(f"pool horizons {self.min_horizon}..{self.max_horizon} are empty; swap them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Train and held out: no task and no combination of tags in both."""

    train: TaskPool
    held_out: TaskPool


def make_pools(suite: Suite, config: PoolConfig) -> Pools:
    """Both pools of a suite. Raises PoolError when they share a kin: held-out results would then mean nothing."""
    shape = {"seed": config.seed, "min_horizon": config.min_horizon, "max_horizon": config.max_horizon}
    pools = Pools(
        train=suite.pool(split="train", size=config.train_tasks, **shape),
        held_out=suite.pool(split="held_out", size=config.held_out_tasks, **shape),
    )
    shared = {t.tags for t in pools.train.tasks} & {t.tags for t in pools.held_out.tasks}
    if shared:
        raise PoolError(f"suite {suite.name}: train and held-out share {len(shared)} kinds, such as {min(shared)}")
    return pools
