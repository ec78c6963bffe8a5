"""How values look in Arrow and in JSON: numbers, text, lists and arrays. The public face is `infra.records`.

A codec works on whole columns (a list of values of one field), so that ten thousand token ids cost one numpy call
and not ten thousand Python calls. Types are strict in both directions: nothing is coerced but an int in a float
field, which becomes a float.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

SCALARS: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}

_INT64 = range(-(2**63), 2**63)


class RecordFormatError(ValueError):
    """A record that cannot be written or read. Says the field, what was got, what is wanted and the mend."""


def _names(kinds: Iterable[type]) -> str:
    return " or ".join(sorted(k.__qualname__ for k in kinds))


def check_kind(where: str, values: Sequence[Any], *kinds: type) -> None:
    """Refuse a value of another type. A bool is no int here."""
    for got in set(map(type, values)):
        if not issubclass(got, kinds) or (issubclass(got, bool) and bool not in kinds):
            value = next(v for v in values if type(v) is got)
            raise RecordFormatError(f"{where} is {value!r:.80} ({got.__qualname__}); want {_names(kinds)}")


def _offsets(values: Sequence[Any]) -> list[int]:
    return list(accumulate(map(len, values), initial=0))


def _list_offsets(column: pa.Array) -> list[int]:
    offsets = column.offsets.to_numpy()
    result: list[int] = (offsets - offsets[0]).tolist()
    return result


class Codec(ABC):
    """One annotation. `where` names the field in errors; `arrow` is its column type; `nullable` allows None.

    All Arrow fields are nullable (the parts of an absent struct are null); nulls are checked here on reading.
    """

    where: str
    arrow: pa.DataType
    nullable = False

    @abstractmethod
    def to_column(self, values: Sequence[Any]) -> pa.Array:
        """The Arrow array of these values. Raises RecordFormatError."""

    def from_column(self, column: pa.Array) -> list[Any]:
        """The values of an Arrow array of type `arrow`. Raises RecordFormatError."""
        if column.null_count and not self.nullable:
            raise RecordFormatError(f"{self.where} is null in {column.null_count} rows; want a value in every row")
        return self._decode(column)

    @abstractmethod
    def _decode(self, column: pa.Array) -> list[Any]:
        """The values of an Arrow array in which nulls are allowed or absent."""

    @abstractmethod
    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        """What JSON can hold of these values. Raises RecordFormatError."""

    @abstractmethod
    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        """The values of parsed JSON, strictly. Raises RecordFormatError."""


class ScalarCodec(Codec):
    """A bool, int (64 bit), float or str; with `choices`, one of these strings (a Literal)."""

    def __init__(self, where: str, kind: type, choices: tuple[str, ...] = ()) -> None:
        self.where, self.kind, self.choices = where, kind, frozenset(choices)
        self.arrow = SCALARS[kind]

    def _check(self, values: Sequence[Any]) -> None:
        kinds = (float, int) if self.kind is float else (self.kind,)
        check_kind(self.where, values, *kinds)
        if self.choices and not self.choices.issuperset(values):
            odd = next(v for v in values if v not in self.choices)
            raise RecordFormatError(f"{self.where} is {odd!r:.80}; want one of {sorted(self.choices)}")

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        self._check(values)
        try:
            return pa.array(values, self.arrow)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError) as error:
            raise RecordFormatError(f"{self.where}: {error}; want what {self.arrow} can hold") from error

    def _decode(self, column: pa.Array) -> list[Any]:
        # pyarrow has no fast way to Python strings; numpy has one to Python numbers.
        result: list[Any]
        if self.kind is str:
            result = column.to_pylist()
        else:
            result = column.to_numpy(zero_copy_only=False).tolist()
        self._check(result)
        return result

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        self._check(values)
        if self.kind is float:
            odd = next((v for v in values if not math.isfinite(v)), None)
            if odd is not None:
                raise RecordFormatError(f"{self.where} is {odd}; JSON holds finite numbers only")
            return [float(v) for v in values]
        if self.kind is int and values and not (_INT64.start <= min(values) and max(values) < _INT64.stop):
            odd = next(v for v in values if v not in _INT64)
            raise RecordFormatError(f"{self.where} is {odd}; want what int64 can hold")
        return list(values)

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        return self.to_plain(plains)


class SequenceCodec(Codec):
    """`tuple[X, ...]`: an Arrow list."""

    def __init__(self, where: str, item: Codec) -> None:
        self.where, self.item = where, item
        self.arrow = pa.list_(item.arrow)

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        check_kind(self.where, values, tuple)
        items = self.item.to_column(list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(pa.array(_offsets(values), pa.int32()), items, type=self.arrow)

    def _decode(self, column: pa.Array) -> list[Any]:
        items = self.item.from_column(column.flatten())
        return [tuple(items[a:b]) for a, b in pairwise(_list_offsets(column))]

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        check_kind(self.where, values, tuple)
        items = self.item.to_plain(list(chain.from_iterable(values)))
        return [items[a:b] for a, b in pairwise(_offsets(values))]

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        check_kind(self.where, plains, list)
        items = self.item.from_plain(list(chain.from_iterable(plains)))
        return [tuple(items[a:b]) for a, b in pairwise(_offsets(plains))]


class ArrayCodec(Codec):
    """A one-dimensional numpy array of one dtype: an Arrow list. Read back as an array that owns its memory."""

    def __init__(self, where: str, dtype: np.dtype[Any]) -> None:
        self.where, self.dtype = where, dtype
        kind: type = {"b": bool, "i": int, "u": int, "f": float}[dtype.kind]
        self._plain = SequenceCodec(where, ScalarCodec(f"{where}[]", kind))
        self.arrow = pa.list_(pa.from_numpy_dtype(dtype))

    def _check(self, values: Sequence[Any]) -> None:
        check_kind(self.where, values, np.ndarray)
        odd = next((v for v in values if v.ndim != 1 or v.dtype != self.dtype), None)
        if odd is not None:
            raise RecordFormatError(
                f"{self.where} is {odd.dtype} of shape {odd.shape}; want one dimension of {self.dtype}"
            )

    def to_column(self, values: Sequence[Any]) -> pa.Array:
        self._check(values)
        flat = np.concatenate(values) if values else np.empty(0, self.dtype)
        return pa.ListArray.from_arrays(pa.array(_offsets(values), pa.int32()), pa.array(flat), type=self.arrow)

    def _decode(self, column: pa.Array) -> list[Any]:
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return [flat[a:b].copy() for a, b in pairwise(_list_offsets(column))]

    def to_plain(self, values: Sequence[Any]) -> list[Any]:
        self._check(values)
        return self._plain.to_plain([tuple(v.tolist()) for v in values])

    def from_plain(self, plains: Sequence[Any]) -> list[Any]:
        try:
            return [np.asarray(v, dtype=self.dtype) for v in self._plain.from_plain(plains)]
        except OverflowError as error:
            raise RecordFormatError(f"{self.where}: {error}; want what {self.dtype} can hold") from error
