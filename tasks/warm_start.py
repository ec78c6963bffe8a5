"""The warm start: from nothing to a policy that can do the task, noisily, by imitating demonstrations.

An untrained policy with a tokenizer of the suite's own text; then lessons, each of two stages: demonstrations, through
the one path, and supervised training on their chains. All are found again by content key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments.harnesses.tool_loop import ToolLoop
from environments.polar.recorder import PolarRecorder
from environments.rollout import RolloutRoom, roll_out_groups
from environments.types import Group, TaskPool
from infra import records
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.demonstrations import (
    DemonstrationConfig,
    Script,
    WatchedBoxes,
    demonstration_requests,
    plain_text,
    protocol_phrases,
)
from tasks.pools import PoolConfig
from tasks.rollouts import Journal, read_groups, write_rollouts
from tasks.stage import Desk, Runner, Stage, Work
from training.policy import PolicyShape, build_policy

SEED_POLICY = Stage(name="seed_policy", version=1, kind="policy")
DEMONSTRATE = Stage(name="demonstrate", version=1, kind="rollouts")
IMITATE = Stage(name="imitate", version=2, kind="policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """`tasks` demonstrated once each, trained on in `passes` with a rate that falls to 0 by a cosine.

    `drill` turns that copy a number go beside each batch, renumbered.
    """

    tasks: int
    passes: int
    learning_rate: float
    drill: int
    demonstrations: DemonstrationConfig


VARIED = Lesson(tasks=2000, passes=4, learning_rate=2e-3, drill=32, demonstrations=DemonstrationConfig())
"""Many mistakes and ways out of them: teaches the commands, and to copy names and numbers from what was read."""
HASTY = Lesson(
    tasks=600,
    passes=5,
    learning_rate=1.5e-3,
    drill=32,
    demonstrations=DemonstrationConfig(error_rate=0.1, verify_rate=0.1, recover_rate=0.4, haste=0.5, seed=1),
)
"""The habit to start from: it can verify and go back, but does so rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """A warm start. `text_tasks` of the first lesson teach the tokenizer.

    Many small batches and the drill teach a small model to copy what it reads; few large ones do not.
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    lessons: tuple[Lesson, ...] = (VARIED, HASTY)
    text_tasks: int = 300
    batch_size: int = 8
    concurrency: int = 32


def make_warm_start(desk: Desk, run: Runner, pools: PoolConfig, config: WarmStartConfig) -> Manifest:
    """The manifest of the trained policy folder. Lesson i demonstrates train tasks of pool seed + 1000 + i."""
    suite = desk.workshop.suite(pools.suite)
    taught = [
        suite.pool(
            split="train",
            size=lesson.tasks,
            seed=pools.seed + 1000 + number,
            min_horizon=pools.min_horizon,
            max_horizon=pools.max_horizon,
        )
        for number, lesson in enumerate(config.lessons)
    ]
    policy = seed_policy = run(_seed_policy(desk, taught[0], config))
    for lesson, pool in zip(config.lessons, taught, strict=True):
        demonstrations = run(demonstrate(desk, seed_policy, pool, lesson, config.concurrency))
        policy = run(learn(desk, policy, (demonstrations,), lesson, config.batch_size))
    return policy


def _seed_policy(desk: Desk, pool: TaskPool, config: WarmStartConfig) -> Work:
    section = [pool.digest, config.shape, config.lessons[0].demonstrations, config.text_tasks]

    def make(out: Path, scratch: Path) -> int:
        suite = desk.workshop.suite(pool.tasks[0].suite)
        tasks = pool.tasks[: config.text_tasks]
        texts = desk.workshop.run(plain_text, tasks, suite, desk.workshop.boxes, config.lessons[0].demonstrations)
        build_policy(out, corpus=texts, phrases=protocol_phrases(), shape=config.shape, seed=desk.seed)
        return 0

    return Work(stage=SEED_POLICY, parents=(), section=section, make=make)


def demonstrate(desk: Desk, policy: Manifest, pool: TaskPool, lesson: Lesson, concurrency: int) -> Work:
    """One demonstration of each task of `pool`, in tokens of `policy`: a rollouts artifact."""

    def make(out: Path, scratch: Path) -> int:
        journal = Journal(scratch)
        boxes = WatchedBoxes(desk.workshop.boxes)
        groups = desk.workshop.run(_groups, desk, desk.store.path(policy), boxes, pool, lesson, concurrency, journal)
        return write_rollouts(groups, journal, out)

    section = [pool.digest, lesson.demonstrations]
    schema = records.schema_version(Group)
    return Work(stage=DEMONSTRATE, parents=(policy,), section=section, make=make, schema_version=schema)


async def _groups(
    desk: Desk,
    folder: Path,
    boxes: WatchedBoxes,
    pool: TaskPool,
    lesson: Lesson,
    concurrency: int,
    journal: Journal,
) -> Sequence[Group]:
    from infra.engines.forced import ForcedEngine
    from infra.engines.local import LocalEngine

    engine = ForcedEngine(LocalEngine(folder), Script(boxes, lesson.demonstrations))
    recorder = PolarRecorder(engine, desk.work / "demonstration-calls")
    room = RolloutRoom(
        suite=desk.workshop.suite(pool.tasks[0].suite),
        harness=ToolLoop(),
        boxes=boxes,
        recorder=recorder,
        log=journal,
        sampling=Sampling(temperature=1.0, max_tokens=256, seed=desk.seed),
        concurrency=concurrency,
    )
    desk.progress.begin("demonstrate", iteration=None, total=len(pool.tasks))
    try:
        requests = demonstration_requests(pool.tasks)
        return await roll_out_groups(requests, room, on_done=lambda _: desk.progress.advance())
    finally:
        await recorder.aclose()
        await engine.aclose()


def learn(desk: Desk, policy: Manifest, demonstrations: tuple[Manifest, ...], lesson: Lesson, batch_size: int) -> Work:
    """Train `policy` on what was said in rollouts artifacts: a model folder. Its rows are the optimizer updates."""
    from training.warm_start import imitate

    def make(out: Path, scratch: Path) -> int:
        return imitate(
            desk.store.path(policy),
            [m for done in demonstrations for g in read_groups(desk, done) for m in g.members],
            out,
            passes=lesson.passes,
            batch_size=batch_size,
            drill=lesson.drill,
            learning_rate=lesson.learning_rate,
            seed=desk.seed,
            on_step=_shown(desk, "imitate"),
        )

    section = [lesson.passes, batch_size, lesson.drill, lesson.learning_rate]
    return Work(stage=IMITATE, parents=(policy, *demonstrations), section=section, make=make)


def _shown(desk: Desk, label: str) -> Callable[[int, int, float], None]:
    def on_step(step: int, total: int, loss: float) -> None:
        if step == 0:
            desk.progress.begin(label, iteration=None, total=total)
        desk.progress.advance()
        desk.progress.show(loss=loss)

    return on_step
