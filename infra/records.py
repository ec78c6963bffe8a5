"""Frozen dataclasses as JSON, JSON lines and Parquet, stamped with a schema version and read back equal.

The form follows from the annotations (see `infra.record_structs`). The version is the constant SCHEMA_VERSION of the
module that defines the class: raise it when a field changes. Reading refuses another version, another class,
unknown or missing fields, and wrong types; it never guesses.

>>> from environments.types import Limits
>>> limits = Limits(max_turns=8, max_tokens=600)
>>> to_json(limits)
b'{"record":"Limits","schema_version":1,"data":{"max_turns":8,"max_tokens":600,"wall_time_s":600.0}}'
>>> from_json(Limits, to_json(limits)) == limits
True
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from infra.record_codec import RecordFormatError
from infra.record_structs import ProductCodec, record_codec

__all__ = [
    "RecordFormatError",
    "from_json",
    "iter_parquet",
    "read_jsonl",
    "read_parquet",
    "schema_version",
    "to_json",
    "write_jsonl",
    "write_parquet",
]

T = TypeVar("T")

# Rows a row group: bounds memory, and keeps Arrow's 32-bit offsets far from their end with long trajectories.
_GROUP_ROWS = 512
_RECORD_KEY, _VERSION_KEY = b"longbreath.record", b"longbreath.schema_version"


_CODECS: dict[type, ProductCodec] = {}


def _codec(cls: type) -> ProductCodec:
    if cls not in _CODECS:
        _CODECS[cls] = record_codec(cls)
    return _CODECS[cls]


def schema_version(cls: type) -> int:
    """SCHEMA_VERSION of the module that defines `cls`. Raises RecordFormatError when it has none."""
    version = getattr(sys.modules[cls.__module__], "SCHEMA_VERSION", None)
    if type(version) is not int:
        raise RecordFormatError(
            f"{cls.__qualname__}: module {cls.__module__} has SCHEMA_VERSION {version!r}; give it an integer"
        )
    return version


def _check_stamp(cls: type, where: str, record: Any, version: Any) -> None:
    if record != cls.__qualname__:
        raise RecordFormatError(f"{where} holds records {record!r}; want {cls.__qualname__!r}")
    want = schema_version(cls)
    if version != want:
        raise RecordFormatError(
            f"{where} has schema version {version!r}; this code reads {cls.__qualname__} version {want}. "
            f"Make it anew with this code, or read it with the code that wrote it"
        )


# JSON ------------------------------------------------------------------------------------------------------------


def to_json(record: Any) -> bytes:
    """One record as one line of JSON (no line end): class name, schema version, data. Raises RecordFormatError."""
    cls = type(record)
    (data,) = _codec(cls).to_plain([record])
    stamped = {"record": cls.__qualname__, "schema_version": schema_version(cls), "data": data}
    try:
        return json.dumps(stamped, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise RecordFormatError(
            f"{cls.__qualname__} holds text that is no Unicode: {error}; decode with errors='replace'"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise RecordFormatError(f"JSON holds {name}; want finite numbers")


def from_json(cls: type[T], data: bytes, *, where: str = "JSON") -> T:
    """The record of `to_json`, checked strictly. `where` names the source in errors. Raises RecordFormatError."""
    try:
        stamped = json.loads(data, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordFormatError(f"{where} is no JSON ({len(data)} bytes): {error}") from error
    if not isinstance(stamped, dict) or stamped.keys() != {"record", "schema_version", "data"}:
        raise RecordFormatError(f"{where} starts {data[:60]!r}; want keys record, schema_version and data")
    _check_stamp(cls, where, stamped["record"], stamped["schema_version"])
    record: T
    (record,) = _codec(cls).from_plain([stamped["data"]])
    return record


def write_jsonl(records: Iterable[Any], path: Path) -> int:
    """One record a line. Returns the number of lines. Raises RecordFormatError, OSError."""
    with path.open("wb") as stream:
        return sum(bool(stream.write(to_json(record) + b"\n")) for record in records)


def read_jsonl(cls: type[T], path: Path) -> list[T]:
    """All records of `write_jsonl`. Raises RecordFormatError naming the line, OSError."""
    with path.open("rb") as stream:
        return [from_json(cls, line, where=f"{path}:{number}") for number, line in enumerate(stream, start=1)]


# Parquet ---------------------------------------------------------------------------------------------------------


def _schema(cls: type) -> pa.Schema:
    stamp = {_RECORD_KEY: cls.__qualname__.encode(), _VERSION_KEY: str(schema_version(cls)).encode()}
    return pa.schema(_codec(cls).fields, metadata=stamp)


def write_parquet(records: Iterable[T], path: Path, *, cls: type[T] | None = None) -> int:
    """Write records of one class, in row groups, and return how many. `cls` is needed when there may be none.

    The file appears as it is written: `infra.store` makes it atomic. Raises RecordFormatError, OSError.
    """
    rest = iter(records)
    head = list(islice(rest, 1))
    if cls is None and not head:
        raise RecordFormatError(f"{path}: no records and no class; give write_parquet `cls`")
    kind: type = cls if cls is not None else type(head[0])
    codec, schema, rows = _codec(kind), _schema(kind), 0
    stream = chain(head, rest)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(stream, _GROUP_ROWS)):
            writer.write_batch(pa.RecordBatch.from_arrays(codec.columns(group), schema=schema))
            rows += len(group)
    return rows


def read_parquet(cls: type[T], path: Path) -> list[T]:
    """All records of a file. Raises RecordFormatError, FileNotFoundError."""
    return list(iter_parquet(cls, path))


def iter_parquet(cls: type[T], path: Path) -> Iterator[T]:
    """The records of a file in order, one row group in memory at a time. Raises like `read_parquet`."""
    codec = _codec(cls)
    try:
        with pq.ParquetFile(path) as file:
            _check_schema(cls, path, file.schema_arrow)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group).combine_chunks()
                batches = table.to_batches()
                yield from chain.from_iterable(codec.join(batch.columns) for batch in batches)
    except pa.ArrowInvalid as error:
        raise RecordFormatError(f"{path} is no whole Parquet file: {error}") from error


def _check_schema(cls: type, path: Path, got: pa.Schema) -> None:
    stamp = got.metadata or {}
    version = stamp.get(_VERSION_KEY, b"").decode()
    _check_stamp(cls, str(path), stamp.get(_RECORD_KEY, b"").decode(), int(version) if version.isdecimal() else version)
    want = _schema(cls)
    if got.equals(want):
        return
    unknown, missing = sorted(set(got.names) - set(want.names)), sorted(set(want.names) - set(got.names))
    both = [n for n in want.names if n in got.names and not got.field(n).equals(want.field(n))]
    changed = [f"{n} is {got.field(n).type}, want {want.field(n).type}" for n in both]
    raise RecordFormatError(
        f"{path}: unknown fields {unknown}, missing fields {missing}, wrong types {changed}, "
        f"order {got.names}; want {want.names}. Make the file anew with this code"
    )
