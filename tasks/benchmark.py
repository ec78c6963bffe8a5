"""The benchmark stage: a policy on the held-out pool, sampled as in rollouts or greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from environments.gates.judge import GateConfig
from environments.rollout import GroupRequest
from environments.types import Group, Judged, TaskPool
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.judge import judge_rollouts, read_judged
from tasks.policies import Policy
from tasks.rollouts import RolloutConfig, RolloutPlan, read_groups, roll_out
from tasks.stage import Desk, Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkConfig:
    """How policies are compared. `bands` are the upper ends of the horizon bands, ascending.

    `attempts` per task; `temperature` 0 is greedy (then one attempt is enough). `greedy`: a fine-tuning run measures
    greedy success too, beside the one that decides. `confidence` of the intervals.
    `min_gain` is what a candidate must gain over the champion, at the lower end of the interval, to be promoted.
    """

    attempts: int = 1
    temperature: float = 1.0
    greedy: bool = False
    bands: tuple[int, ...] = (5, 8, 12)
    confidence: float = 0.95
    min_gain: float = 0.0
    seed: int = 7

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"benchmark.attempts is {self.attempts}; want at least 1")
        if not 0 <= self.temperature <= 10:
            raise ValueError(f"benchmark.temperature is {self.temperature}; want a number in [0, 10], 0 is greedy")
        if not 0 < self.confidence < 1:
            raise ValueError(f"benchmark.confidence is {self.confidence}; want a share between 0 and 1, such as 0.95")
        if self.temperature == 0 and self.attempts > 1:
            raise ValueError("benchmark.attempts > 1 with temperature 0 would repeat one rollout; set attempts=1")
        if not self.bands or list(self.bands) != sorted(set(self.bands)):
            raise ValueError(f"benchmark.bands is {self.bands}; want at least one horizon, ascending")

    @property
    def greedily(self) -> BenchmarkConfig:
        """The same tasks, met once by the most probable tokens."""
        return replace(self, attempts=1, temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmarked:
    """What a policy did on the held-out pool."""

    policy: Policy
    rollouts: Manifest
    judged: Manifest

    def groups(self, desk: Desk) -> list[Group]:
        """The trajectories, one group a task."""
        return read_groups(desk, self.rollouts)

    def verdicts(self, desk: Desk) -> list[Judged]:
        """Their verdicts."""
        return read_judged(desk, self.judged)

    def rewards(self, desk: Desk) -> dict[str, list[float]]:
        """Task id -> one reward per judged attempt."""
        return rewards_by_task(self.verdicts(desk))


def rewards_by_task(verdicts: Sequence[Judged]) -> dict[str, list[float]]:
    """Task id -> one reward per judged attempt; what could not be judged is left out."""
    rewards: dict[str, list[float]] = {}
    for judged in verdicts:
        if judged.reward is not None:
            rewards.setdefault(judged.task_id, []).append(judged.reward)
    return rewards


def benchmark(
    desk: Desk,
    run: Runner,
    policy: Policy,
    pool: TaskPool,
    *,
    config: BenchmarkConfig,
    rollouts: RolloutConfig,
    gates: GateConfig,
    label: str,
) -> Benchmarked:
    """Measure `policy`. Two policies measured with one config met the same tasks with the same random numbers."""
    plan = RolloutPlan(
        suite=pool.tasks[0].suite,
        policy=policy,
        requests=tuple(GroupRequest(group_id=f"bench-{t.task_id}", task=t, size=config.attempts) for t in pool.tasks),
        iteration=None,
        sampling=Sampling(temperature=config.temperature, max_tokens=rollouts.max_tokens, seed=config.seed),
        label=label,
    )
    done = run(roll_out(desk, plan, parents=(), config=rollouts, gates=gates))
    judged = run(judge_rollouts(desk, done, pool, gates=gates, concurrency=rollouts.concurrency, iteration=None))
    return Benchmarked(policy=policy, rollouts=done, judged=judged)
