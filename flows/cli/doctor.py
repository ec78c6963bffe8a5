"""`longbreath doctor`: what is installed and reachable, and how to mend what is not."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from flows.cli.errors import EXIT_FAILED
from flows.cli.live import console
from flows.cli.options import Common


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `needed` is False for what only some configurations use."""

    name: str
    ok: bool
    said: str
    mend: str = ""
    needed: bool = True


_PACKAGES = ("torch", "transformers", "prefect", "mlflow", "great_expectations", "renderers", "tree-sitter-bash")


def _package(name: str) -> Finding:
    try:
        return Finding(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, False, "not installed", "run `make test` once: it installs the lock")


def _box() -> Finding:
    import asyncio

    from environments.sandboxes.base import SandboxError, SandboxSpec
    from environments.sandboxes.bubblewrap import BubblewrapProvider

    async def try_one() -> str:
        box = await BubblewrapProvider().start(SandboxSpec(label="doctor"))
        try:
            return (await box.run("id -u")).output.strip()
        finally:
            await box.stop()

    try:
        return Finding("bubblewrap sandbox", True, f"works; an agent is user {asyncio.run(try_one())}")
    except SandboxError as error:
        return Finding("bubblewrap sandbox", False, str(error), "install bubblewrap and allow user namespaces")


def _home(home: str) -> Finding:
    place = home
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free / 1e9
    writable = os.access(place, os.W_OK)
    said = f"{home}: {free:.1f} GB free" + ("" if writable else ", not writable")
    return Finding("home folder", writable and free > 2, said, "give a writable folder with 2 GB: --home DIR")


def _url(name: str, variable: str, why: str) -> Finding:
    from urllib.parse import urlparse

    url = os.environ.get(variable, "")
    if not url:
        return Finding(name, True, f"{variable} is not set: {why}", needed=False)
    parts = urlparse(url)
    if parts.scheme not in ("http", "https"):
        return Finding(name, True, url, needed=False)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2):
            return Finding(name, True, f"{url} answers", needed=False)
    except OSError as error:
        return Finding(name, False, f"{url}: {error}", f"start it, or unset {variable}")


def _store(home: Path) -> Finding:
    from flows.home import Home
    from infra.store import StoreError

    place = Home(home).settings.store
    try:
        Home(home).store.find("0" * 64)
        return Finding("artifact store", True, place)
    except StoreError as error:
        return Finding("artifact store", False, str(error), "mend what it names, or unset LONGBREATH_STORE")


def _docker() -> Finding:
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=2)
        return Finding("Docker engine", True, str(client.version().get("Version")), needed=False)
    except DockerException as error:
        said = f"not reachable: {str(error)[:60]}"
        return Finding("Docker engine", False, said, "only for Docker sandboxes: start dockerd", needed=False)


def _harnesses() -> Finding:
    """The harnesses that `rollouts.harness` may name here, beside the built-in one."""
    from environments.gates.judge import GateConfig
    from environments.harnesses.inside import HarnessNotReady
    from tasks.rollouts import HARNESSES, RolloutConfig

    ready, missing = [], []
    for name, make in HARNESSES.items():
        try:
            make(RolloutConfig(harness=name), GateConfig())
            ready.append(name)
        except HarnessNotReady:
            missing.append(name)
    mend = f"to use {', '.join(missing)}: infra/harnesses/install.sh"
    return Finding("harnesses", not missing, ", ".join(ready), mend, needed=False)


def _gpu() -> Finding:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Finding("GPU", True, f"none: {os.cpu_count()} processors", needed=False)
    words = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return Finding("GPU", done.returncode == 0, done.stdout.strip() or done.stderr.strip(), "check the driver")


def doctor(*, common: Common = Common()) -> int:  # noqa: B008 - frozen
    """Say what is installed and reachable, and how to mend what is not."""
    looks: list[Callable[[], Finding]] = [
        *[lambda name=name: _package(name) for name in _PACKAGES],
        _box,
        lambda: _home(str(common.home)),
        lambda: _url("Prefect server", "PREFECT_API_URL", "a server of its own is started for each run"),
        lambda: _url("MLflow server", "LONGBREATH_MLFLOW_URI", "SQLite below the home folder is used"),
        lambda: _store(common.home),
        _harnesses,
        _docker,
        _gpu,
    ]
    findings = [look() for look in looks]
    table = Table("", "what", "found", "mend", title="longbreath doctor", title_justify="left")
    for column in table.columns:
        column.overflow = "fold"  # a command that is cut short cannot be given
    for f in findings:
        mark = "[green]ok[/]" if f.ok else "[red]no[/]" if f.needed else "[yellow]--[/]"
        table.add_row(mark, f.name, f.said, "" if f.ok else f.mend)
    console().print(table)
    common.emit({"findings": [vars(f) for f in findings]})
    return EXIT_FAILED if any(not f.ok and f.needed for f in findings) else 0
