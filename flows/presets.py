"""Presets: functions that build whole configurations. A test builds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flows.config import PolicyConfig, RunConfig
from flows.overrides import ConfigError
from tasks.benchmark import BenchmarkConfig
from tasks.pass_rates import CurriculumConfig
from tasks.pools import PoolConfig
from tasks.train import TrainSection

TINY_DIGEST = "13536e956371750e545feae65679e47089be74b886d0d41ff25b3cf4aa544627"


def tiny() -> RunConfig:
    """Tasks of 3 to 12 turns, a policy of about 1.2 M parameters: minutes on two cores."""
    return RunConfig(
        name="tiny",
        iterations=12,
        policy=PolicyConfig(digest=TINY_DIGEST),
        pool=PoolConfig(train_tasks=160, held_out_tasks=120, min_horizon=3, max_horizon=12),
        curriculum=CurriculumConfig(tasks_per_iteration=16, group_size=8),
        training=TrainSection(aggregation="rollout_mean", learning_rate=2e-4, updates_per_batch=2),
        benchmark=BenchmarkConfig(bands=(5, 8, 12)),
    )


def tiny_long() -> RunConfig:
    """Tasks of 3 to 50 turns with the same policy: up to 40 minutes on two cores."""
    return replace(
        tiny(),
        name="tiny_long",
        iterations=24,
        pool=PoolConfig(train_tasks=240, held_out_tasks=144, min_horizon=3, max_horizon=50),
        benchmark=BenchmarkConfig(bands=(5, 8, 12, 20, 30, 50)),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {"tiny": tiny, "tiny_long": tiny_long}


def preset(name: str) -> RunConfig:
    """The preset of that name. Raises ConfigError that lists them."""
    if name not in PRESETS:
        raise ConfigError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]()
