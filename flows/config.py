"""The configuration of a run: one frozen tree, its fields documented where their stage is, no contradictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from environments.gates.judge import GateConfig
from flows.overrides import ConfigError
from infra.digests import digest_of
from tasks.benchmark import BenchmarkConfig
from tasks.pass_rates import CurriculumConfig
from tasks.pools import PoolConfig
from tasks.registry import TrackingConfig
from tasks.rollouts import RolloutConfig
from tasks.train import TrainSection
from tasks.workshop import EngineConfig
from training.curriculum.base import Strategy
from training.curriculum.signal import mode_of

SCHEMA_VERSION = 2
CHECKOUT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Where policy 0 is. `folder` is an HF folder (relative: below the checkout); `digest` pins its content."""

    folder: str = "training/assets/tiny"
    digest: str | None = None

    @property
    def path(self) -> Path:
        """The folder as an absolute path."""
        return (CHECKOUT / self.folder).resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A fine-tuning run. `name` and the digest of all settings make the run's id."""

    name: str = "tiny"
    seed: int = 0
    iterations: int = 10
    pool: PoolConfig = field(default_factory=PoolConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    gates: GateConfig = field(default_factory=GateConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    training: TrainSection = field(default_factory=TrainSection)
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ConfigError(f"iterations is {self.iterations}; want at least 1")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; want 0 or more")
        if not self.name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"name is {self.name!r}; want letters, digits, '-' and '_'")
        if self.curriculum.tasks_per_iteration > self.pool.train_tasks:
            raise ConfigError(
                f"curriculum.tasks_per_iteration is {self.curriculum.tasks_per_iteration} but the pool has "
                f"{self.pool.train_tasks} tasks; lower the one or raise pool.train_tasks"
            )
        if self.benchmark.bands[-1] < self.pool.max_horizon:
            raise ConfigError(
                f"benchmark.bands end at {self.benchmark.bands[-1]} but pool.max_horizon is {self.pool.max_horizon}; "
                f"add a last band of {self.pool.max_horizon}"
            )

    def strategy(self) -> Strategy:
        """The curriculum's strategy, weighing tasks by the advantage that the trainer uses."""
        return self.curriculum.build(mode_of(self.training.advantage))

    @property
    def run_id(self) -> str:
        """'NAME-' and eight hex digits of all settings: the same settings are the same run."""
        return f"{self.name}-{digest_of(self)[:8]}"
