"""The promotion ledger: JSON lines, only ever appended to, because MLflow keeps no history of its aliases.

A move is written as 'begun' before the aliases change and as 'done' after, so that one cut short is finished later.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra import records
from infra.tracking import TrackingError

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """One move of the aliases: after it, `champion` and `previous` are these versions (None: no such alias).

    `at_s` is seconds since 1970, `number` counts moves from 1, `reason` is for people ('benchmark 3f2a: +31 points').
    """

    number: int
    action: Literal["promote", "rollback"]
    champion: int
    previous: int | None
    reason: str
    at_s: float
    state: Literal["begun", "done"]


class Ledger:
    """The ledger of one model in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def read(self) -> list[Promotion]:
        """All rows, oldest first. Raises TrackingError naming the line that is broken."""
        try:
            return records.read_jsonl(Promotion, self.path)
        except FileNotFoundError:
            return []
        except records.RecordFormatError as error:
            raise TrackingError(f"the promotion ledger is damaged: {error}; restore it from a backup") from error

    def append(self, row: Promotion) -> None:
        """Add a row durably, or not at all. Raises TrackingError."""
        line = records.to_json(row) + b"\n"
        with self._errors(), self._stream() as stream:
            before = os.fstat(stream).st_size
            written = os.write(stream, line)
            if written != len(line):
                os.ftruncate(stream, before)
                raise OSError(f"only {written} of {len(line)} bytes fitted")
            os.fsync(stream)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for, then keep, the right to move the aliases: one promoter at a time on this host."""
        with ExitStack() as stack:
            with self._errors():
                stream = stack.enter_context(self._stream())
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _stream(self) -> Iterator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        stream = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            yield stream
        finally:
            os.close(stream)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrackingError(
                f"the promotion ledger {self.path} cannot be written: {error}; free space or mend its permissions"
            ) from error
