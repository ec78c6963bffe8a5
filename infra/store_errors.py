"""The errors of the store's boundary."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(RuntimeError):
    """The store could not do its part. Says where, what happened and the mend; what was published is whole."""


class CorruptArtifact(StoreError):
    """An artifact's content no longer matches its manifest."""


class StoreConflict(StoreError):
    """Another content is already published under this key."""


class RunLocked(StoreError):
    """Another process holds this run."""


def _mend(error: OSError, root: Path) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            free_mb = shutil.disk_usage(root).free / 1e6
            return f"the disk is full ({free_mb:.1f} MB free): free some space"
        case errno.EFBIG:
            return "the file would be larger than this process may write: raise `ulimit -f`"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return "the folder is not writable by this user: mount it read-write, or change its owner or mode"
        case _:
            return "mend what it names"


@contextmanager
def os_errors(doing: str, root: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what was being done, in which store, and what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"store {root}: {doing} failed: {error}; {_mend(error, root)}, then run the same command again. "
            f"Everything published before is intact"
        ) from error
