"""The artifact store: immutable content by digest, found by content key, committed by its manifest.

    objects/<sha256>.<name>    a file or a folder, named by its content: never half there, never changed
    manifests/<key>.json       the commit marker, written last and only once
    tmp/ locks/ quarantine/    half-made things, who runs what, and what did not verify

Publishing writes to a temporary name, flushes, renames, and creates the manifest last, so that a writer killed at
any moment leaves an artifact that is absent or whole. What does not verify is moved to quarantine, said in a
warning, and counts as absent: the stage is simply done again.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from infra import records, staging
from infra.manifest import Manifest, Producer, is_digest
from infra.run_lock import run_lock
from infra.store_errors import CorruptArtifact, RunLocked, StoreConflict, StoreError, os_errors

__all__ = ["CorruptArtifact", "LocalStore", "RunLocked", "Store", "StoreConflict", "StoreError"]

T = TypeVar("T")
Build = Callable[[Path], int | None]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Store(ABC):
    """Finds, publishes and opens artifacts. `root` holds temporary files (and, for S3, the verified local copies)."""

    root: Path

    def _errors(self, doing: str) -> AbstractContextManager[None]:
        """Turns what the storage raises into a StoreError that says what was being done and how to mend it."""
        return os_errors(doing, self.root)

    @abstractmethod
    def _read_manifest(self, key: str) -> bytes | None:
        """The committed manifest's bytes, None when there is none."""

    @abstractmethod
    def _commit(self, key: str, data: bytes) -> bool:
        """Create the manifest durably if there is none; whether it was created."""

    @abstractmethod
    def _put(self, made: Path, uri: str) -> None:
        """Bring a finished file or folder to its place, durably. Equal content may be there already."""

    @abstractmethod
    def _fetch(self, uri: str) -> tuple[Path, str]:
        """A local path of the content, and the digest of what is there. Raises FileNotFoundError."""

    @abstractmethod
    def _quarantine(self, key: str, uri: str | None, reason: str) -> str:
        """Move a manifest and (when known) its content out of the way; where they went."""

    @abstractmethod
    def lock(self, run_id: str) -> AbstractContextManager[None]:
        """Hold a run for this process. Raises RunLocked, naming the holder, when another process has it."""

    def sweep(self) -> int:
        """Remove what killed writers of this host left in tmp/; how many. Call it when a run starts."""
        with self._errors("sweeping tmp/"):
            return staging.sweep_staging(self.root)

    def find(self, key: str) -> Manifest | None:
        """The manifest under this key, its content verified; None when the work is yet to be done.

        A broken manifest, or content that is missing or does not match its digest, is moved to quarantine with a
        warning and counts as absent. Raises StoreError.
        """
        manifest = self._load_manifest(key)
        if manifest is None:
            return None
        try:
            self.path(manifest)
        except CorruptArtifact:
            return None
        return manifest

    def _load_manifest(self, key: str) -> Manifest | None:
        if not is_digest(key):
            raise StoreError(f"{key!r} is no content key; want the 64 hex digits of infra.manifest.content_key")
        with self._errors(f"reading manifest {key[:12]}"):
            data = self._read_manifest(key)
        if data is None:
            return None
        try:
            manifest = records.from_json(Manifest, data, where=f"manifest {key[:12]}")
        except records.RecordFormatError as error:
            self._set_aside(key, None, str(error))
            return None
        if manifest.key != key:
            self._set_aside(key, None, f"manifest {key[:12]} is of key {manifest.key[:12]}")
            return None
        return manifest

    def path(self, manifest: Manifest) -> Path:
        """A local path to the verified content: read it, never write to it.

        Raises CorruptArtifact (after moving it to quarantine) when it is missing or changed, StoreError.
        """
        with self._errors(f"verifying {manifest.uri}"):
            try:
                path, got = self._fetch(manifest.uri)
            except FileNotFoundError:
                got = "absent"
        if got == manifest.sha256:
            return path
        reason = f"content of {manifest.kind} {manifest.uri} is {got}; want {manifest.sha256}"
        self._set_aside(manifest.key, manifest.uri, reason)
        raise CorruptArtifact(f"{reason}. It was moved to quarantine; run the same command again to make it anew")

    def _set_aside(self, key: str, uri: str | None, reason: str) -> None:
        with self._errors(f"moving broken {uri or key[:12]} to quarantine ({reason})"):
            where = self._quarantine(key, uri, reason)
        _log.warning("store %s: %s; moved to %s; the stage will be done again", self.root, reason, where)

    def publish(
        self,
        key: str,
        kind: str,
        build: Build,
        *,
        producer: Producer,
        parents: Sequence[Manifest] = (),
        name: str | None = None,
        schema_version: int = 1,
    ) -> Manifest:
        """Make an artifact and commit it under `key`.

        `build(path)` writes a file or makes a folder at `path` and returns its number of records (None where it
        holds other things). `name` (default: `kind`) is what the content is called ('policy', 'samples.parquet').
        Publishing equal content again answers the first manifest. Raises StoreConflict when other content is
        there, StoreError for an OSError, and whatever else `build` raises; then nothing is published.
        """
        name = name or kind
        if not _NAME.fullmatch(name):
            raise StoreError(f"artifact name {name!r}: want letters, digits, '.', '_', '-', at most 100")
        with self._errors(f"publishing {kind} {key[:12]}"), staging.staging_folder(self.root) as folder:
            made = folder / name
            rows = build(made)
            if not (made.is_file() or any(path.is_file() for path in made.rglob("*"))):
                raise StoreError(f"publishing {kind} {key[:12]}: the builder made no file at or below {made}")
            sha256 = staging.digest_of_content(made)
            manifest = Manifest(
                key=key,
                kind=kind,
                uri=f"objects/{sha256}.{name}",
                sha256=sha256,
                rows=rows or 0,
                schema_version=schema_version,
                parents=tuple(parent.key for parent in parents),
                producer=producer,
            )
            self._put(made, manifest.uri)
            return self._commit_once(manifest)

    def _commit_once(self, manifest: Manifest) -> Manifest:
        if self._commit(manifest.key, records.to_json(manifest)):
            return manifest
        first = self.find(manifest.key)
        if first is None:  # what was there did not verify and is now in quarantine
            return self._commit_once(manifest)
        if not first.same_artifact(manifest):
            raise StoreConflict(
                f"key {manifest.key[:12]} already holds {first.kind} {first.sha256[:12]} with {first.rows} rows; "
                f"refused {manifest.kind} {manifest.sha256[:12]} with {manifest.rows} rows. Equal inputs gave two "
                f"results: raise the stage's version if its code changed, else find what is not deterministic"
            )
        return first

    def publish_records(
        self,
        key: str,
        kind: str,
        items: Iterable[T],
        *,
        cls: type[T],
        producer: Producer,
        parents: Sequence[Manifest] = (),
    ) -> Manifest:
        """Publish records of one class as a Parquet file. Raises like `publish`, and RecordFormatError."""
        return self.publish(
            key,
            kind,
            lambda path: records.write_parquet(items, path, cls=cls),
            producer=producer,
            parents=parents,
            name=f"{kind}.parquet",
            schema_version=records.schema_version(cls),
        )

    def read_records(self, cls: type[T], manifest: Manifest) -> list[T]:
        """All records of an artifact of `publish_records`. Raises CorruptArtifact, RecordFormatError, StoreError."""
        path = self.path(manifest)
        with self._errors(f"reading {manifest.uri}"):
            return records.read_parquet(cls, path)


class LocalStore(Store):
    """A store in a folder of a local (or properly shared) file system. The folder is made when first written to."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def _manifest_path(self, key: str) -> Path:
        return self.root / "manifests" / f"{key}.json"

    def _read_manifest(self, key: str) -> bytes | None:
        try:
            return self._manifest_path(key).read_bytes()
        except FileNotFoundError:
            return None

    def _commit(self, key: str, data: bytes) -> bool:
        path = self._manifest_path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with staging.staging_folder(self.root) as folder:
            made = folder / path.name
            made.write_bytes(data)
            staging.sync(made)
            try:
                os.link(made, path)  # unlike a rename, refuses when another writer was first
            except FileExistsError:
                return False
        staging.sync(path.parent)
        return True

    def _put(self, made: Path, uri: str) -> None:
        place = self.root / uri
        if place.exists() and staging.digest_of_content(place) != staging.digest_of_content(made):
            where = self._move_aside([place], f"{uri} does not have the content that its name says")
            _log.warning("store %s: broken %s moved to %s", self.root, uri, where)
        staging.move_into_place(made, place)

    def _fetch(self, uri: str) -> tuple[Path, str]:
        return self.root / uri, staging.digest_of_content(self.root / uri)

    def _quarantine(self, key: str, uri: str | None, reason: str) -> str:
        paths = [self._manifest_path(key)]
        return str(self._move_aside(paths if uri is None else [*paths, self.root / uri], reason))

    def _move_aside(self, paths: Sequence[Path], reason: str) -> Path:
        parent = self.root / "quarantine"
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{paths[-1].name[:12]}.", dir=parent))
        (folder / "reason.txt").write_text(reason + "\n")
        for path in paths:
            if path.exists():
                path.rename(folder / path.name)
        return folder

    def lock(self, run_id: str) -> AbstractContextManager[None]:
        return run_lock(self.root, run_id)
