"""Half-made things on a file system: temporary folders that name their writer, durable writes, safe names."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from infra.digests import digest_file, digest_folder
from infra.store_errors import StoreError


def sync(path: Path) -> None:
    """Flush one file or folder entry to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with all it holds, children first. Raises OSError."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            sync_tree(child)
    sync(path)


def digest_of_content(path: Path) -> str:
    """SHA-256 of a file or a folder. Raises StoreError for links, sockets and the like, OSError."""
    found = [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]
    for entry in found:
        mode = entry.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise StoreError(f"{entry} is no plain file or folder; an artifact holds nothing else")
    return digest_folder(path) if path.is_dir() else digest_file(path)


def move_into_place(made: Path, place: Path) -> None:
    """Bring a finished file or folder durably to its place, where equal content may be already. Raises OSError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        sync_tree(made)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():  # a folder cannot replace one that another writer has just put there
                raise
    sync(place.parent)


@contextmanager
def staging_folder(root: Path) -> Iterator[Path]:
    """A new folder below root/tmp for half-made things, gone at the end. A killed writer's is for `sweep`."""
    parent = root / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{socket.gethostname()}.{os.getpid()}.", dir=parent))
    try:
        yield folder
    finally:
        # On a failing disk the removal fails too; the first error is the one to tell, and `sweep` does the rest.
        shutil.rmtree(folder, ignore_errors=True)


def sweep_staging(root: Path) -> int:
    """Remove the staging folders of this host's dead processes; how many. Raises OSError."""
    removed = 0
    for folder in sorted((root / "tmp").glob(f"{socket.gethostname()}.*.*")):
        pid = folder.name.split(".")[-2]
        if not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder)
            removed += 1
    return removed
