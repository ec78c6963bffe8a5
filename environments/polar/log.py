"""The write-ahead log: append-only, one fsync for many calls.

`append` hands the bytes to the kernel at once (a killed process loses nothing); `commit` returns when they are on
the disk (a killed host loses nothing).
"""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments.polar.errors import LogDamaged, LogFailed
from environments.polar.log_format import (
    FORMAT,
    FRAME,
    MAGIC,
    SUFFIX,
    VERSION,
    Entry,
    decode_payload,
    encode_entry,
)

RECENT_FSYNCS = 10_000
QUICK_S = 0.005  # an fsync that took longer is better waited for in a thread


class LogWriter:
    """Appends to a file of its own (one a process), so that no writer ever meets another's torn tail.

    A sync that failed is final: the kernel drops what it could not write and calls the next sync a success, so no later
    one proves anything of the bytes before it. `sync` puts a file's bytes on the disk.
    """

    def __init__(self, folder: Path, *, sync: Callable[[int], None] = os.fdatasync) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{time.time_ns():020d}-{os.getpid()}{SUFFIX}"
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._size = 0
        self._synced = 0
        self._sync_file = sync
        self._lost: OSError | None = None
        self._syncing: asyncio.Future[None] | None = None
        self.fsync_count = 0
        self.recent_fsyncs_s: deque[float] = deque(maxlen=RECENT_FSYNCS)
        self.append({"kind": "log", "format": FORMAT, "version": VERSION})
        self._sync()
        self._sync_folder(folder)

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def append(
        self,
        head: Mapping[str, Any],
        *,
        ids: Sequence[Sequence[int]] = (),
        logprobs: Sequence[Sequence[float]] = (),
    ) -> int:
        """Hand one record to the kernel; its offset. Raises LogFailed, with the half-written frame cut away."""
        frame = encode_entry(head, ids, logprobs)
        start, sent = self._size, 0
        if self._file < 0:
            raise LogFailed(f"the log {self.path} is closed")
        if self._lost is not None:
            raise LogFailed(f"the log {self.path} has lost bytes: {self._lost}; mend the disk and start again")
        try:
            while sent < len(frame):
                sent += os.write(self._file, memoryview(frame)[sent:])
        except OSError as error:
            os.ftruncate(self._file, start)
            raise LogFailed(f"cannot write the log {self.path}: {error}; free some space") from error
        self._size += len(frame)
        return start

    def _sync(self) -> None:
        target, begun = self._size, time.perf_counter()
        if self._lost is not None:
            raise self._lost
        try:
            self._sync_file(self._file)
        except OSError as error:
            self._lost = error
            raise
        self.recent_fsyncs_s.append(time.perf_counter() - begun)
        self.fsync_count += 1
        self._synced = max(self._synced, target)

    async def commit(self, *, alone: bool = False) -> None:
        """Return when everything appended before this call is on the disk. Callers share one fsync.

        `alone`: no other call needs the loop, so a disk that is quick is waited for on it: to a thread and back
        takes as long again.
        """
        target = self._size
        try:
            while self._synced < target:
                if self._syncing is not None and not self._syncing.done():
                    await asyncio.shield(self._syncing)
                elif alone and self.recent_fsyncs_s[-1] < QUICK_S:
                    self._sync()
                else:
                    self._syncing = asyncio.get_running_loop().run_in_executor(None, self._sync)
        except OSError as error:
            raise LogFailed(f"cannot sync the log {self.path}: {error}") from error

    def read_at(self, offset: int) -> Entry:
        """Read one record back. Raises LogDamaged when it is not what was written."""
        magic, length, crc = FRAME.unpack(os.pread(self._file, FRAME.size, offset))
        payload = os.pread(self._file, length, offset + FRAME.size)
        if magic != MAGIC or zlib.crc32(payload) != crc:
            raise LogDamaged(f"{self.path}: the record at byte {offset} is not what was written")
        return decode_payload(payload, offset)

    def close(self) -> None:
        """Sync and close. Idempotent. Raises OSError when bytes are not on the disk; it is closed all the same."""
        if self._file >= 0:
            try:
                self._sync()
            finally:
                os.close(self._file)
                self._file = -1


@dataclass(slots=True)
class RolloutLog:
    """One rollout's records in the shared log: numbered, and found again without reading the others'."""

    writer: LogWriter
    rollout_id: str
    offsets: list[int] = field(default_factory=list)
    closed: bool = False

    def append(
        self,
        kind: str,
        head: Mapping[str, Any],
        *,
        ids: Sequence[Sequence[int]] = (),
        logprobs: Sequence[Sequence[float]] = (),
    ) -> None:
        """Hand the next record to the kernel. Raises LogFailed, also after `close`: nothing may follow its record."""
        if self.closed:
            raise LogFailed(f"the record of rollout {self.rollout_id!r} is closed")
        whole = {"kind": kind, "rollout": self.rollout_id, "seq": len(self.offsets), **head}
        self.offsets.append(self.writer.append(whole, ids=ids, logprobs=logprobs))

    def close(self, head: Mapping[str, Any]) -> None:
        """Append the last record. Raises LogFailed; it is closed all the same."""
        try:
            self.append("close", head)
        finally:
            self.closed = True

    def entries(self) -> list[Entry]:
        """All records so far, read back from the file."""
        return [self.writer.read_at(offset) for offset in self.offsets]
