"""Prefect as the runner of stages: retries, caching by content key, run names, and the log of a deployed run.

The content key is also Prefect's cache key. A result that Prefect remembers but the store cannot verify counts as a
miss. No Prefect task per rollout or turn: one per stage.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from logging import LoggerAdapter
from pathlib import Path
from typing import Any

import httpx
import psutil

from infra.engines.base import EngineError
from infra.manifest import Manifest
from infra.store import StoreError
from tasks.progress import Progress
from tasks.stage import Desk, Work, perform
from training.errors import StepLost

RETRIES, RETRY_DELAY_S = 2, 5.0


class PrefectUnready(RuntimeError):
    """No Prefect server: the message says which was wanted and how to mend it."""


def end_orphaned_servers(home: Path) -> int:
    """End the Prefect servers that killed runs of this home left behind; how many. (They outlive their parent.)"""
    ended = 0
    for process in psutil.process_iter(["ppid", "cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if process.info["ppid"] != 1 or "prefect.server.api.server" not in words:
            continue
        try:
            if process.environ().get("PREFECT_HOME") == str(home):
                process.terminate()
                ended += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return ended


def wait_for_prefect(progress: Progress) -> None:
    """Reach Prefect's server, or start one of this process's own, and say what is waited for. Raises PrefectUnready.

    With PREFECT_API_URL set, that server is used. Without, Prefect starts its own for the length of the run.
    """
    from prefect.client.orchestration import get_client

    url = os.environ.get("PREFECT_API_URL")
    progress.say(f"Prefect: {f'server {url}' if url else 'starting a server of its own (5 to 60 s)'}")
    started = time.monotonic()
    try:
        with get_client(sync_client=True) as client:
            client.read_flows(limit=1)
    except (RuntimeError, OSError, httpx.HTTPError) as error:
        mend = f"start the server at {url}, or unset PREFECT_API_URL" if url else "look at its log above; try again"
        raise PrefectUnready(f"Prefect cannot be reached: {error}. Mend: {mend}") from error
    progress.say(f"Prefect: ready after {time.monotonic() - started:.1f} s")


@dataclass
class FlowLog:
    """`tasks.progress.Progress` for a run that nobody watches: what is said, and each stage, is a line of its log."""

    log: LoggerAdapter[Any]

    def say(self, text: str) -> None:
        """See `Progress.say`; marks for a terminal are left out."""
        from rich.text import Text

        self.log.info(Text.from_markup(text).plain)

    def begin(self, stage: str, *, iteration: int | None, total: int) -> None:
        """See `Progress.begin`."""
        self.say(stage if iteration is None else f"iteration {iteration + 1}: {stage}")

    def advance(self, units: int = 1) -> None:
        """See `Progress.advance`."""

    def show(self, **figures: float) -> None:
        """See `Progress.show`."""


@dataclass
class PrefectRunner:
    """Runs each stage as a Prefect task. `overhead_s` is what Prefect took beside the stages' own time."""

    desk: Desk
    retry_delay_s: float = RETRY_DELAY_S
    overhead_s: float = 0.0

    def __call__(self, work: Work) -> Manifest:
        """See `tasks.stage.Runner`."""
        from prefect import task

        key = work.key(self.desk)
        found = self.desk.store.find(key)
        began = False
        inside = 0.0

        def stage() -> Manifest:
            nonlocal began, inside
            began = True
            started = time.monotonic()
            try:
                return perform(self.desk, work)
            finally:
                inside += time.monotonic() - started

        started = time.monotonic()
        run = task(
            stage,
            name=work.stage.name,
            task_run_name=f"{work.label} · {self.desk.run_id}",
            retries=RETRIES,
            retry_delay_seconds=self.retry_delay_s,
            retry_condition_fn=_is_ours,
            persist_result=True,
            cache_key_fn=lambda _context, _parameters: key,
            refresh_cache=found is None,
        )
        manifest: Manifest = run()
        self.overhead_s += time.monotonic() - started - inside
        if not began:
            self.desk.progress.say(f"[dim]{work.label}: done before, reused[/]")
        # Prefect may remember a result that has been made anew since: the store's word counts.
        return found or manifest


def _is_ours(_task: Any, _task_run: Any, state: Any) -> bool:
    """Retry what may pass by itself: a fault of engine, host or store, a killed process. Bad input and bugs fail."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, (EngineError, StoreError, StepLost, OSError))
