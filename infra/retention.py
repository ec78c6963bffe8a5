"""What may be thrown away: artifacts that only old runs used, and folders that nobody touched for long."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from infra.manifest import Manifest
from infra.store import LocalStore


def drop_artifacts(store: LocalStore, expired: Iterable[Manifest], kept: Iterable[Manifest]) -> int:
    """Remove the artifacts of `expired` that are not among `kept`, by key and by content; the bytes freed.

    The manifest goes first: a kill in between leaves content without a manifest, which counts as absent. A run that
    finds such an artifact in that very moment is told that it is broken, and makes it anew when it is run again.
    """
    live = list(kept)
    keys, uris = {m.key for m in live}, {m.uri for m in live}
    freed = 0
    for manifest in {m.key: m for m in expired if m.key not in keys}.values():
        (store.root / "manifests" / f"{manifest.key}.json").unlink(missing_ok=True)
        if manifest.uri not in uris:
            freed += _remove(store.root / manifest.uri)
    return freed


def remove_untouched(folder: Path, *, since_s: float) -> int:
    """Remove what lies in `folder` and was not changed since `since_s` (seconds since 1970); the bytes freed."""
    if not folder.is_dir():
        return 0
    return sum(_remove(path) for path in folder.iterdir() if _newest(path) < since_s)


def _newest(path: Path) -> float:
    """When the path, or anything below it, was last changed."""
    return max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))


def _remove(path: Path) -> int:
    if not path.exists():
        return 0
    size = sum(entry.stat().st_size for entry in (path, *path.rglob("*")) if entry.is_file())
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return size
