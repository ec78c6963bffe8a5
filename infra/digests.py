"""Content digests: the one way to turn a value or a file into a name for its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _field(f, getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value


def _field(field: dataclasses.Field[Any], value: Any) -> Any:
    # 60 and 60.0 in a float field are equal records, and stay so when read back: they have one digest.
    if field.type in (float, "float") and type(value) is int:
        return float(value)
    return _plain(value)


def canonical_json(value: Any) -> bytes:
    """JSON bytes that are equal iff the values are: sorted keys, no spaces, NaN refused (ValueError)."""
    return json.dumps(
        _plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_of(value: Any) -> str:
    """SHA-256 (64 hex digits) of the canonical JSON of a dataclass, mapping, sequence or scalar."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_bytes(data: bytes) -> str:
    """SHA-256 (64 hex digits) of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 (64 hex digits) of a file's content, read in constant memory. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_folder(root: Path) -> str:
    """SHA-256 over the sorted (relative path, file digest) pairs below `root`: names and contents, no times."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    return digest_of([(p.relative_to(root).as_posix(), digest_file(p)) for p in files])
