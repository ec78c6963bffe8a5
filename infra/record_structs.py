"""How values are put together in Arrow and in JSON: optional ones, tuples, dataclasses, unions of dataclasses.

`record_codec` derives the codec of a dataclass from its annotations.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pyarrow as pa

from infra.record_codec import SCALARS, ArrayCodec, Codec, RecordFormatError, ScalarCodec, SequenceCodec, check_kind


class OptionalCodec(Codec):
    """`X | None`: a nullable column."""

    nullable = True

    def __init__(self, inner: Codec) -> None:
        self.where, self.inner, self.arrow = inner.where, inner, inner.arrow

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        return spread(self.inner, values, [v is not None for v in values])

    def _decode(self, column: pa.Array) -> list[Any]:
        present = iter(self.inner.from_column(column.drop_null()))
        return [next(present) if valid else None for valid in column.is_valid().to_pylist()]

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        present = iter(self.inner.to_plain([v for v in values if v is not None]))
        return [None if v is None else next(present) for v in values]

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        present = iter(self.inner.from_plain([p for p in plains if p is not None]))
        return [None if p is None else next(present) for p in plains]


def spread(codec: Codec, values: Sequence[Any], wanted: Sequence[bool]) -> pa.Array:
    """The column of the wanted values, null in the places of the others."""
    places = accumulate(wanted, initial=0)
    indices = [place if want else None for place, want in zip(places, wanted, strict=False)]
    present = codec.to_column([v for v, want in zip(values, wanted, strict=True) if want])
    return present.take(pa.array(indices, pa.int64()))


class ProductCodec(Codec):
    """Named parts made into one value by `make`: a dataclass, or a tuple of fixed length (parts '0', '1', ...)."""

    def __init__(self, where: str, kind: type, parts: dict[str, Codec]) -> None:
        if not parts:
            raise RecordFormatError(f"{where}: {kind.__qualname__} has no fields; want at least one")
        self.where, self.kind, self.parts = where, kind, parts
        self.fields = [pa.field(name, part.arrow) for name, part in parts.items()]
        self.arrow = pa.struct(self.fields)

    def _split(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """One column of values for each part."""
        odd = next((v for v in values if type(v) is not self.kind), None)
        if odd is not None:
            raise RecordFormatError(f"{self.where} is a {type(odd).__qualname__}; want {self.kind.__qualname__}")
        if self.kind is not tuple:
            return [[getattr(v, name) for v in values] for name in self.parts]
        odd = next((v for v in values if len(v) != len(self.parts)), None)
        if odd is not None:
            raise RecordFormatError(f"{self.where} has {len(odd)} entries; want {len(self.parts)}")
        return [[v[i] for v in values] for i in range(len(self.parts))]

    def _join(self, columns: Iterable[Iterable[Any]]) -> list[Any]:
        rows = zip(*columns, strict=True)
        if self.kind is tuple:
            return list(rows)
        try:
            return [self.kind(**dict(zip(self.parts, row, strict=True))) for row in rows]
        except (ValueError, TypeError) as error:
            raise RecordFormatError(f"{self.where}: {self.kind.__qualname__} refuses it: {error}") from error

    def columns(self, values: Sequence[Any]) -> list[pa.Array]:
        """One Arrow array for each part."""
        columns = zip(self.parts.values(), self._split(values), strict=True)
        return [part.to_column(column) for part, column in columns]

    def join(self, columns: Sequence[pa.Array]) -> list[Any]:
        """The values of which `columns` are the parts."""
        parts = zip(self.parts.values(), columns, strict=True)
        return self._join([part.from_column(column) for part, column in parts])

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        return pa.StructArray.from_arrays(self.columns(values), fields=self.fields)

    def _decode(self, column: pa.Array) -> list[Any]:
        return self.join([column.field(i) for i in range(len(self.parts))])

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        columns = zip(self.parts.values(), self._split(values), strict=True)
        rows = zip(*[part.to_plain(column) for part, column in columns], strict=True)
        if self.kind is tuple:
            return [list(row) for row in rows]
        return [dict(zip(self.parts, row, strict=True)) for row in rows]

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        if self.kind is tuple:
            check_kind(self.where, plains, list)
            columns = self._split([tuple(p) for p in plains])
        else:
            check_kind(self.where, plains, dict)
            for keys in {frozenset(p) for p in plains}:
                self._check_keys(keys)
            columns = [[p[name] for p in plains] for name in self.parts]
        parts = zip(self.parts.values(), columns, strict=True)
        return self._join([part.from_plain(column) for part, column in parts])

    def _check_keys(self, got: frozenset[str]) -> None:
        unknown, missing = sorted(got - self.parts.keys()), sorted(self.parts.keys() - got)
        if unknown or missing:
            raise RecordFormatError(
                f"{self.where}: unknown fields {unknown}, missing fields {missing}; want exactly {list(self.parts)}"
            )


class UnionCodec(Codec):
    """One of several dataclasses: a struct with one nullable part each; in JSON `{"ClassName": {...}}`."""

    def __init__(self, where: str, choices: dict[str, ProductCodec]) -> None:
        self.where, self.choices = where, choices
        self.fields = [pa.field(name, choice.arrow) for name, choice in choices.items()]
        self.arrow = pa.struct(self.fields)

    def _check(self, names: Sequence[str]) -> None:
        odd = next((name for name in names if name not in self.choices), None)
        if odd is not None:
            raise RecordFormatError(f"{self.where} is a {odd}; want {' or '.join(self.choices)}")

    def _gather(self, names: Sequence[str], present: dict[str, list[Any]]) -> list[Any]:
        queues = {name: iter(values) for name, values in present.items()}
        return [next(queues[name]) for name in names]

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        names = [type(v).__qualname__ for v in values]
        self._check(names)
        columns = [spread(c, values, [n == name for n in names]) for name, c in self.choices.items()]
        return pa.StructArray.from_arrays(columns, fields=self.fields)

    def _decode(self, column: pa.Array) -> list[Any]:
        parts = {name: column.field(i) for i, name in enumerate(self.choices)}
        valid = np.array([part.is_valid().to_numpy(zero_copy_only=False) for part in parts.values()], dtype=bool)
        if (valid.sum(axis=0) != 1).any():
            raise RecordFormatError(f"{self.where}: want exactly one of {' or '.join(self.choices)} in every row")
        names = [list(self.choices)[i] for i in valid.argmax(axis=0)]
        return self._gather(
            names, {name: self.choices[name].from_column(part.drop_null()) for name, part in parts.items()}
        )

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        names = [type(v).__qualname__ for v in values]
        self._check(names)
        plains = {
            name: choice.to_plain([v for v, n in zip(values, names, strict=True) if n == name])
            for name, choice in self.choices.items()
        }
        return [{n: plain} for n, plain in zip(names, self._gather(names, plains), strict=True)]

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        check_kind(self.where, plains, dict)
        names = [",".join(p) for p in plains]
        self._check(names)
        present = {
            name: choice.from_plain([p[name] for p in plains if name in p]) for name, choice in self.choices.items()
        }
        return self._gather(names, present)


def record_codec(cls: type, where: str = "") -> ProductCodec:
    """The codec of a dataclass. Raises RecordFormatError for an annotation that has no form here."""
    if not dataclasses.is_dataclass(cls):
        raise RecordFormatError(f"{cls!r} is no dataclass; only dataclasses are records")
    hints, prefix = typing.get_type_hints(cls), where or cls.__qualname__
    names = [f.name for f in dataclasses.fields(cls)]
    return ProductCodec(prefix, cls, {name: codec_of(hints[name], f"{prefix}.{name}") for name in names})


def codec_of(annotation: Any, where: str) -> Codec:
    """The codec of one annotation. Raises RecordFormatError for one that has no form here."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in SCALARS:
        return ScalarCodec(where, annotation)
    if origin is Literal and all(type(a) is str for a in args):
        return ScalarCodec(where, str, args)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        return SequenceCodec(where, codec_of(args[0], f"{where}[]"))
    if origin is tuple:
        return ProductCodec(where, tuple, {str(i): codec_of(a, f"{where}[{i}]") for i, a in enumerate(args)})
    if origin in (Union, types.UnionType):
        return _union_codec(args, where)
    if origin is np.ndarray and np.dtype(get_args(args[1])[0]).kind in "biuf":
        return ArrayCodec(where, np.dtype(get_args(args[1])[0]))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return record_codec(annotation, where)
    raise RecordFormatError(
        f"{where}: {annotation} has no record form; use str, int, float, bool, Literal strings, tuples, X | None, "
        f"dataclasses, unions of dataclasses, or one-dimensional numpy arrays of numbers"
    )


def _union_codec(args: tuple[Any, ...], where: str) -> Codec:
    kinds = [a for a in args if a is not type(None)]
    if len(kinds) == 1:
        codec = codec_of(kinds[0], where)
    elif all(dataclasses.is_dataclass(k) for k in kinds):
        codec = UnionCodec(where, {k.__qualname__: record_codec(k, f"{where}.{k.__qualname__}") for k in kinds})
    else:
        raise RecordFormatError(f"{where}: a union of {kinds}; only unions of dataclasses have a record form")
    return codec if len(kinds) == len(args) else OptionalCodec(codec)
