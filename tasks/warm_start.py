"""The warm start: from nothing to a policy that can do the task, noisily, by imitating demonstrations.

Three stages, each found again by its content key: an untrained policy with a tokenizer of the suite's own text; the
demonstrations, through the one path; supervised training on their chains.
"""

from __future__ import annotations

import shutil
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
from tasks.rollouts import GROUPS_FILE, Journal, read_groups
from tasks.stage import Desk, Runner, Stage, Work
from training.policy import PolicyShape, build_policy

SEED_POLICY = Stage(name="seed_policy", version=1, kind="policy")
DEMONSTRATE = Stage(name="demonstrate", version=1, kind="rollouts")
IMITATE = Stage(name="imitate", version=1, kind="policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStartConfig:
    """A warm start. `text_tasks` teach the tokenizer, all tasks of the pool are demonstrated once.

    `passes` over all demonstrations in batches of `batch_size`; the rate falls to 0 by a cosine. Many small batches
    teach a small model to copy names and numbers from what it reads; few large ones do not.
    """

    shape: PolicyShape = field(default_factory=PolicyShape)
    demonstrations: DemonstrationConfig = field(default_factory=DemonstrationConfig)
    text_tasks: int = 300
    passes: int = 8
    batch_size: int = 8
    learning_rate: float = 2e-3
    concurrency: int = 32


def make_warm_start(desk: Desk, run: Runner, pool: TaskPool, config: WarmStartConfig) -> Manifest:
    """The manifest of the trained policy folder."""
    seed_policy = run(_seed_policy(desk, pool, config))
    demonstrations = run(_demonstrate(desk, seed_policy, pool, config))
    return run(_imitate(desk, seed_policy, demonstrations, config))


def _seed_policy(desk: Desk, pool: TaskPool, config: WarmStartConfig) -> Work:
    section = [pool.digest, config.shape, config.demonstrations, config.text_tasks]

    def make(out: Path, scratch: Path) -> int:
        suite = desk.workshop.suite(pool.tasks[0].suite)
        tasks = pool.tasks[: config.text_tasks]
        texts = desk.workshop.run(plain_text, tasks, suite, desk.workshop.boxes, config.demonstrations)
        build_policy(out, corpus=texts, phrases=protocol_phrases(), shape=config.shape, seed=desk.seed)
        return 0

    return Work(stage=SEED_POLICY, parents=(), section=section, make=make)


def _demonstrate(desk: Desk, policy: Manifest, pool: TaskPool, config: WarmStartConfig) -> Work:
    def make(out: Path, scratch: Path) -> int:
        journal = Journal(scratch)
        groups = desk.workshop.run(_groups, desk, desk.store.path(policy), pool, config, journal)
        out.mkdir()
        shutil.copytree(journal.states, out / "states")
        records.write_parquet(groups, out / GROUPS_FILE, cls=Group)
        return len(groups)

    section = [pool.digest, config.demonstrations]
    schema = records.schema_version(Group)
    return Work(stage=DEMONSTRATE, parents=(policy,), section=section, make=make, schema_version=schema)


async def _groups(
    desk: Desk, folder: Path, pool: TaskPool, config: WarmStartConfig, journal: Journal
) -> Sequence[Group]:
    from infra.engines.forced import ForcedEngine
    from infra.engines.local import LocalEngine

    boxes = WatchedBoxes(desk.workshop.boxes)
    engine = ForcedEngine(LocalEngine(folder), Script(boxes, config.demonstrations))
    recorder = PolarRecorder(engine, desk.work / "demonstration-calls")
    room = RolloutRoom(
        suite=desk.workshop.suite(pool.tasks[0].suite),
        harness=ToolLoop(),
        boxes=boxes,
        recorder=recorder,
        log=journal,
        sampling=Sampling(temperature=1.0, max_tokens=256, seed=desk.seed),
        concurrency=config.concurrency,
    )
    desk.progress.begin("demonstrate", iteration=None, total=len(pool.tasks))
    try:
        requests = demonstration_requests(pool.tasks)
        return await roll_out_groups(requests, room, on_done=lambda _: desk.progress.advance())
    finally:
        await recorder.aclose()
        await engine.aclose()


def _imitate(desk: Desk, policy: Manifest, demonstrations: Manifest, config: WarmStartConfig) -> Work:
    from training.warm_start import imitate

    def make(out: Path, scratch: Path) -> int:
        return imitate(
            desk.store.path(policy),
            [m for g in read_groups(desk, demonstrations) for m in g.members],
            out,
            passes=config.passes,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            seed=desk.seed,
            on_step=_shown(desk, "imitate"),
        )

    section = [config.passes, config.batch_size, config.learning_rate]
    return Work(stage=IMITATE, parents=(policy, demonstrations), section=section, make=make)


def _shown(desk: Desk, label: str) -> Callable[[int, int, float], None]:
    def on_step(step: int, total: int, loss: float) -> None:
        if step == 0:
            desk.progress.begin(label, iteration=None, total=total)
        desk.progress.advance()
        desk.progress.show(loss=loss)

    return on_step
