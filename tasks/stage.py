"""One way to do a stage: if its result exists and verifies it is not done again; else do it, publish it, say so."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from infra.digests import digest_of
from infra.manifest import Manifest, Producer, content_key
from infra.store import Store
from tasks.progress import Progress
from tasks.workshop import Workshop


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A kind of work. Raise `version` when the code changes what comes out: old results then count as undone."""

    name: str
    version: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What every stage of a run works at.

    `seed` enters every content key. `salt` is empty, or tells a fresh run from its forerunners, so that nothing is
    reused. `work` holds what is not finished yet, one folder a run and content key.
    """

    run_id: str
    store: Store
    workshop: Workshop
    progress: Progress
    work: Path
    seed: int
    salt: str = ""
    attempt: int = 0


Make = Callable[[Path, Path], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A stage on given inputs: described, not yet done.

    `make(out, scratch)` writes a file or folder at `out` and returns its rows. `scratch` is the work's own folder: it
    outlives a kill, so `make` may keep half-done work there and go on from it; it is removed once the result is
    published. `section` is all that decides the result beside the parents and the seed.
    """

    stage: Stage
    parents: tuple[Manifest, ...]
    section: Any
    make: Make
    iteration: int | None = None
    name: str | None = None
    schema_version: int = 1

    @property
    def label(self) -> str:
        """For people: the stage and, within the loop, the iteration."""
        return self.stage.name if self.iteration is None else f"{self.stage.name} {self.iteration + 1}"

    def key(self, desk: Desk) -> str:
        """The content key of the result."""
        return content_key(
            parents=self.parents,
            stage=self.stage.name,
            stage_version=self.stage.version,
            config_section=[self.section, desk.salt],
            seed=desk.seed,
        )


Runner = Callable[[Work], Manifest]
"""Does work and answers its manifest: `perform` at a desk, or the workflow engine around it."""


def perform(desk: Desk, work: Work) -> Manifest:
    """The work's manifest: found in the store, or made and published now."""
    key = work.key(desk)
    # The run's own: another run that does equal work at this moment has a folder of its own.
    scratch = desk.work / f"{desk.run_id}-{key[:16]}"
    found = desk.store.find(key)
    if found is not None:
        desk.progress.say(f"[dim]{work.label}: done before, reused[/]")
        _remove(scratch)  # there is one when a kill came right after publishing
        return found
    out = scratch / "out"
    scratch.mkdir(parents=True, exist_ok=True)
    _remove(out)
    cpu_started = cpu_s()
    rows = work.make(out, scratch)
    producer = Producer(
        stage=work.stage.name,
        stage_version=work.stage.version,
        config_digest=digest_of(work.section),
        code_version=code_version(),
        seed=desk.seed,
        attempt=desk.attempt,
        cpu_s=round(cpu_s() - cpu_started, 3),
    )

    def move(place: Path) -> int:
        shutil.move(out, place)
        return rows

    manifest = desk.store.publish(
        key,
        work.stage.kind,
        move,
        producer=producer,
        parents=work.parents,
        name=work.name,
        schema_version=work.schema_version,
    )
    shutil.rmtree(scratch)
    return manifest


def cpu_s() -> float:
    """Processor seconds of this process and of the children that it has waited for: sandboxes cost too."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@cache
def code_version() -> str:
    """The git commit of the checkout, '+' behind it when there are local changes; 'unknown' outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    return (commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")) or "unknown"
