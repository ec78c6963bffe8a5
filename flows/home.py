"""Where runs live on disk, and how one is opened: locked, swept, its settings written down."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.config import RunConfig
from flows.overrides import ConfigError
from flows.place import default_home
from infra.records import RecordFormatError, from_json, to_json
from infra.settings import Settings
from infra.store import Store
from tasks.progress import Progress
from tasks.stage import Desk
from tasks.workshop import EngineConfig, Workshop

STEP = "step"  # the name of what `longbreath step` runs


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of all runs: `store/` (artifacts), `runs/ID/`, `work/` (unfinished), `mlflow.db`, `prefect/`.

    LONGBREATH_STORE and LONGBREATH_MLFLOW_URI move the artifacts and MLflow elsewhere; see `infra.settings`.
    """

    root: Path

    @classmethod
    def at(cls, path: str | None) -> Home:
        """The home at `path`; without one, where LONGBREATH_HOME says. How a deployed flow finds it."""
        return cls(Path(path) if path else default_home())

    @property
    def settings(self) -> Settings:
        """Where the store and MLflow are: below `root`, unless the environment names others."""
        return Settings.read(self.root, os.environ)

    @property
    def store(self) -> Store:
        """The artifacts of all runs, opened: equal work is shared between them. Raises StoreError."""
        return self.settings.open_store()

    def run(self, run_id: str) -> Path:
        """The run's own folder."""
        return self.root / "runs" / run_id

    @property
    def mlflow_uri(self) -> str:
        """Where MLflow keeps runs and models unless a configuration says otherwise."""
        return self.settings.tracking_uri

    @property
    def prefect(self) -> Path:
        """Prefect's own folder."""
        return self.root / "prefect"

    def settle_prefect(self) -> None:
        """Tell Prefect where to keep its state, unless it was told. Call this before Prefect is imported."""
        self.prefect.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("PREFECT_HOME", str(self.prefect))
        os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(self.prefect / "storage"))

    def run_ids(self) -> list[str]:
        """The runs there are, newest first."""
        folders = [p for p in (self.root / "runs").glob("*") if (p / "config.json").exists()]
        return [p.name for p in sorted(folders, key=lambda p: p.stat().st_mtime, reverse=True)]


@contextmanager
def open_desk(home: Home, config: RunConfig, progress: Progress, *, fresh: bool = False) -> Iterator[Desk]:
    """A desk for the run: meanwhile nobody else may hold it or its vLLM server. Raises RunLocked, StoreError.

    `fresh`: results of earlier runs are not reused; the run keeps its salt, so that a killed fresh run continues.
    """
    store, run_id = home.store, config.run_id
    with store.lock(run_id), _sole_use(store, config.engine):
        folder = home.run(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        salt, attempt = _note_attempt(folder, config, fresh=fresh)
        store.sweep()
        with workshop_of(config, home.root / "work" / run_id) as workshop:
            yield Desk(
                run_id=run_id,
                store=store,
                workshop=workshop,
                progress=progress,
                work=home.root / "work",
                seed=config.seed,
                salt=salt,
                attempt=attempt,
            )


def workshop_of(config: RunConfig, work_folder: Path) -> Workshop:
    """The tools that the run asks for, to be opened."""
    return Workshop(config.engine, work_folder, docker_image=config.rollouts.docker_image)


def _sole_use(store: Store, engine: EngineConfig) -> AbstractContextManager[None]:
    """Two runs on one server would swap each other's weights; the shards of one run share its server."""
    if not engine.url:
        return nullcontext()
    loopback = urlsplit(engine.url).hostname in ("localhost", "127.0.0.1", "::1")  # each host of a store has its own
    where = f"{socket.gethostname() if loopback else ''} {engine.url}"
    return store.lock("server." + re.sub(r"[^A-Za-z0-9]+", "-", where).strip("-"))


@contextmanager
def open_shard_desk(home: Home, config: RunConfig, progress: Progress, *, salt: str, shard: str) -> Iterator[Desk]:
    """A desk for a part of the run that another process holds. Raises RunLocked when this part is held, StoreError."""
    store, place = home.store, home.root / "work"
    with (
        store.lock(f"{config.run_id}.{shard}"),
        workshop_of(config, place / f"{config.run_id}.{shard}") as workshop,
    ):
        yield Desk(
            run_id=f"{config.run_id}.{shard}",
            store=store,
            workshop=workshop,
            progress=progress,
            work=place,
            seed=config.seed,
            salt=salt,
        )


def _note_attempt(folder: Path, config: RunConfig, *, fresh: bool) -> tuple[str, int]:
    _replace(folder / "config.json", to_json(config))
    path = folder / "attempts.json"
    notes: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"salt": "", "attempts": 0}
    if fresh and notes.get("finished", True):
        notes = {"salt": f"{time.time_ns()}", "attempts": 0, "finished": False}
    notes["attempts"] += 1
    _replace(path, json.dumps(notes).encode())
    return str(notes["salt"]), int(notes["attempts"])


def note_finished(home: Home, run_id: str) -> None:
    """A later `--fresh` starts anew instead of going on."""
    path = home.run(run_id) / "attempts.json"
    _replace(path, json.dumps({**json.loads(path.read_text()), "finished": True}).encode())


def _replace(path: Path, data: bytes) -> None:
    """Write a file that a kill leaves whole: the old one or the new one."""
    made = path.with_name(f".{path.name}")
    made.write_bytes(data)
    made.replace(path)


def saved_config(home: Home, run_id: str) -> RunConfig:
    """The settings that a run was started with. Raises ConfigError when this code has other ones."""
    path = home.run(run_id) / "config.json"
    try:
        return from_json(RunConfig, path.read_bytes(), where=str(path))
    except RecordFormatError as error:
        raise ConfigError(
            f"run {run_id} was started by another version of this code, whose settings differ ({error}); its artifacts "
            f"name that version (producer.code_version): check it out, or start the run anew"
        ) from error
