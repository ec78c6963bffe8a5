"""The log's form: frames with checksums, and a reader that survives a torn tail.

A frame is MAGIC, length (u32), CRC-32 (u32), payload; a payload is the length of its JSON head (u32), the head,
then raw little-endian arrays (int32 ids, float64 logprobs) whose lengths stand in the head under "arrays". The
first frame of a file names format and version. A rollout's records are numbered ("seq"), so that a gap is seen.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.polar.errors import LogDamaged

FORMAT = "longbreath.polar.log"
VERSION = 1
MAGIC = b"LbP1"
FRAME = struct.Struct("<4sII")
_HEAD = struct.Struct("<I")
SUFFIX = ".polarlog"
_encode_head = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record read back. `arrays` in the order written: ids as array('i'), logprobs as array('d')."""

    head: Mapping[str, Any]
    arrays: tuple[array[Any], ...]
    offset: int


def _blob(values: Sequence[float], code: str) -> bytes:
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def encode_entry(
    head: Mapping[str, Any], ids: Sequence[Sequence[int]] = (), logprobs: Sequence[Sequence[float]] = ()
) -> bytes:
    """One frame, ready to append."""
    described = [["i", len(x)] for x in ids] + [["d", len(x)] for x in logprobs]
    text = _encode_head({**head, "arrays": described}).encode()
    blobs = [_blob(x, "i") for x in ids] + [_blob(x, "d") for x in logprobs]
    payload = b"".join([_HEAD.pack(len(text)), text, *blobs])
    return FRAME.pack(MAGIC, len(payload), zlib.crc32(payload)) + payload


def decode_payload(payload: bytes, offset: int) -> Entry:
    """Read a payload whose checksum held."""
    (size,) = _HEAD.unpack_from(payload)
    head = json.loads(payload[_HEAD.size : _HEAD.size + size])
    position = _HEAD.size + size
    arrays = []
    for code, count in head.pop("arrays"):
        values: array[Any] = array(code)
        end = position + count * values.itemsize
        values.frombytes(payload[position:end])
        if sys.byteorder == "big":
            values.byteswap()
        arrays.append(values)
        position = end
    return Entry(head=head, arrays=tuple(arrays), offset=offset)


def _entry_at(data: memoryview, offset: int) -> tuple[Entry, int] | None:
    """The entry whose frame starts at `offset` and where it ends; None when there is no whole, sound one."""
    if offset + FRAME.size > len(data):
        return None
    magic, length, crc = FRAME.unpack_from(data, offset)
    end = offset + FRAME.size + length
    if magic != MAGIC or end > len(data):
        return None
    payload = bytes(data[offset + FRAME.size : end])
    return (decode_payload(payload, offset), end) if zlib.crc32(payload) == crc else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log file read back: its sound entries, the bytes of a torn tail, and spans damaged in the middle."""

    path: Path
    entries: tuple[Entry, ...]
    torn_bytes: int
    damaged: tuple[tuple[int, int], ...]


def _resume(raw: bytes, data: memoryview, offset: int) -> int | None:
    """The next offset after `offset` where a sound frame starts."""
    found = raw.find(MAGIC, offset + 1)
    while found != -1:
        if _entry_at(data, found) is not None:
            return found
        found = raw.find(MAGIC, found + 1)
    return None


def _check_format(path: Path, entry: Entry) -> None:
    got = (entry.head.get("format"), entry.head.get("version"))
    if got != (FORMAT, VERSION):
        raise LogDamaged(f"{path}: format and version are {got}; this code reads {(FORMAT, VERSION)}")


def read_log(path: Path) -> LogFile:
    """Read one file. A torn tail is reported, not an error; so is a span whose checksum fails, and what follows
    it is still read. Raises LogDamaged when the file is of another format or version.
    """
    raw = path.read_bytes()
    data = memoryview(raw)
    entries: list[Entry] = []
    damaged: list[tuple[int, int]] = []
    offset = 0
    while offset < len(raw):
        found = _entry_at(data, offset)
        if found is not None:
            entries.append(found[0])
            offset = found[1]
            continue
        again = _resume(raw, data, offset)
        if again is None:
            break
        damaged.append((offset, again))
        offset = again
    if entries and not damaged:
        _check_format(path, entries[0])
    return LogFile(path=path, entries=tuple(entries), torn_bytes=len(raw) - offset, damaged=tuple(damaged))


def log_files(folder: Path) -> list[Path]:
    """The log files of a folder, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))
