"""One process a run: a lock that the kernel frees when its holder ends, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.store_errors import RunLocked, StoreError, os_errors

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_run_id(run_id: str) -> None:
    """Raises StoreError unless `run_id` is fit to name a file."""
    if not _RUN_ID.fullmatch(run_id):
        raise StoreError(f"run id {run_id!r} is no name: want letters, digits, '.', '_', '-', at most 128")


def holder() -> bytes:
    """Who we are, for the one who finds the run locked."""
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()


def locked_message(run_id: str, data: bytes) -> str:
    """What to tell the second process, from what the first wrote (empty in the instant before it wrote)."""
    who = json.loads(data) if data else {"pid": "unknown", "host": socket.gethostname()}
    return (
        f"run {run_id} is held by process {who['pid']} on host {who['host']}; wait for it, or stop it there "
        f"(kill {who['pid']}): the lock is free once that process is gone. Another run id can start now"
    )


@contextmanager
def run_lock(root: Path, run_id: str) -> Iterator[None]:
    """Hold `run_id` in the store at `root`. Raises RunLocked when another process does, StoreError.

    The file stays behind: removing it would let two processes lock two files of one name.
    """
    check_run_id(run_id)
    path = root / "locks" / f"{run_id}.lock"
    with os_errors(f"locking run {run_id}", root):
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+b")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            raise RunLocked(locked_message(run_id, stream.read())) from None
        with os_errors(f"locking run {run_id}", root):
            stream.truncate(0)
            stream.write(holder())
            stream.flush()
        yield
