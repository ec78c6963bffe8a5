"""What is no record, is another record, or is broken is refused, with the field and the reason; files of records."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environments.types import Judged, Limits, Unjudged
from infra.records import (
    RecordFormatError,
    from_json,
    iter_parquet,
    read_jsonl,
    read_parquet,
    to_json,
    write_jsonl,
    write_parquet,
)

SCHEMA_VERSION = 3  # of the records defined in this file


@dataclass(frozen=True)
class Point:
    x: int
    label: Literal["near", "far"]
    scale: float = 1.0
    name: str = ""
    pair: tuple[int, int] = (0, 0)
    more: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"x": 1.0}, r"Point.x is 1.0 \(float\); want int"),
        ({"x": True}, r"Point.x is True \(bool\); want int"),
        ({"x": None}, r"Point.x is None \(NoneType\); want int"),
        ({"x": 2**63}, r"Point.x.*int64"),
        ({"label": "middle"}, r"Point.label is 'middle'; want one of \['far', 'near'\]"),
        ({"name": "\ud800"}, "surrogates not allowed"),
        ({"pair": (1, 2, 3)}, r"Point.pair has 3 entries; want 2"),
        ({"pair": [1, 2]}, r"Point.pair is a list; want tuple"),
        ({"more": ("a", 1)}, r"Point.more\[\] is 1 \(int\); want str"),
        ({"scale": "2"}, r"Point.scale is '2' \(str\); want float or int"),
    ],
)
def test_a_value_of_the_wrong_type_is_not_written(change: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    point = dataclasses.replace(Point(x=1, label="near"), **change)
    with pytest.raises(RecordFormatError, match=complaint):
        to_json(point)
    with pytest.raises(RecordFormatError, match=complaint):
        write_parquet([point], tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda s: s["data"].update(colour="red"), r"unknown fields \['colour'\], missing fields \[\]"),
        (lambda s: s["data"].pop("x"), r"unknown fields \[\], missing fields \['x'\]"),
        (lambda s: s["data"].update(x="1"), r"Point.x is '1' \(str\); want int"),
        (lambda s: s["data"].update(x=1.5), r"Point.x is 1.5 \(float\); want int"),
        (lambda s: s["data"].update(label="middle"), "want one of"),
        (lambda s: s["data"].update(pair=[1]), "Point.pair has 1 entries; want 2"),
        (lambda s: s.update(data=[]), r"Point is \[\] \(list\); want dict"),
        (lambda s: s.update(schema_version=2), "has schema version 2; this code reads Point version 3"),
        (lambda s: s.update(schema_version="3"), "has schema version '3'"),
        (lambda s: s.update(record="Line"), "holds records 'Line'; want 'Point'"),
        (lambda s: s.pop("record"), "want keys record, schema_version and data"),
    ],
)
def test_json_that_is_not_exactly_such_a_record_is_refused(edit: Any, complaint: str) -> None:
    stamped = json.loads(to_json(Point(x=1, label="near")))
    edit(stamped)
    with pytest.raises(RecordFormatError, match=complaint):
        from_json(Point, json.dumps(stamped).encode())


def test_broken_json_and_nan_are_refused() -> None:
    with pytest.raises(RecordFormatError, match="is no JSON"):
        from_json(Point, to_json(Point(x=1, label="near"))[:-3])
    with pytest.raises(RecordFormatError, match="JSON holds NaN; want finite numbers"):
        from_json(Point, to_json(Point(x=1, label="near")).replace(b"1.0", b"NaN"))
    with pytest.raises(RecordFormatError, match=r"Point.scale is inf; JSON holds finite numbers only"):
        to_json(Point(x=1, label="near", scale=float("inf")))


def test_what_the_class_itself_refuses_is_refused_on_reading() -> None:
    data = to_json(Limits(max_turns=8, max_tokens=600)).replace(b'"max_turns":8', b'"max_turns":0')
    with pytest.raises(RecordFormatError, match=r"Limits refuses it: limits.max_turns is 0; want a positive number"):
        from_json(Limits, data)


@dataclass(frozen=True)
class Other:
    x: int


def _parquet_of(table: pa.Table, path: Path, *, version: str = "3", record: str = "Point") -> Path:
    stamp = {"longbreath.record": record, "longbreath.schema_version": version}
    pq.write_table(table.replace_schema_metadata(stamp), path)
    return path


def test_a_parquet_file_of_another_shape_class_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet([Point(x=1, label="near")], path)
    table = pq.read_table(path)
    odd = tmp_path / "odd.parquet"
    for edited, complaint in [
        (table.append_column("colour", pa.array(["red"])), r"unknown fields \['colour'\]"),
        (table.drop_columns(["x"]), r"missing fields \['x'\]"),
        (table.set_column(0, "x", pa.array(["1"])), "wrong types .'x is string, want int64'"),
        (table.set_column(0, "x", pa.array([None], pa.int64())), "Point.x is null in 1 rows"),
        (table.set_column(1, "label", pa.array(["middle"])), "Point.label is 'middle'"),
        (table.select(["label", "x", "scale", "name", "pair", "more"]), "order"),
    ]:
        with pytest.raises(RecordFormatError, match=complaint):
            read_parquet(Point, _parquet_of(edited, odd))
    with pytest.raises(RecordFormatError, match=r"schema version 2; this code reads Point version 3"):
        read_parquet(Point, _parquet_of(table, odd, version="2"))
    with pytest.raises(RecordFormatError, match=r"holds records 'Point'; want 'Other'"):
        read_parquet(Other, path)
    pq.write_table(table.replace_schema_metadata(None), odd)
    with pytest.raises(RecordFormatError, match=r"holds records ''; want 'Point'"):
        read_parquet(Point, odd)


def test_a_cut_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet([Point(x=1, label="near")], path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordFormatError, match="is no whole Parquet file"):
        read_parquet(Point, path)


def test_a_row_with_both_or_neither_of_a_union_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.parquet"
    write_parquet([Judged(rollout_id="r", group_id="g", task_id="t", result=Unjudged(reason="x"))], path)
    table = pq.read_table(path)
    kind = table.schema.field("result").type
    bad = table.set_column(3, "result", pa.array([{"Verdict": None, "Unjudged": None}], kind))
    _parquet_of(bad, path, version="1", record="Judged")
    with pytest.raises(RecordFormatError, match=r"Judged.result: want exactly one of Verdict or Unjudged"):
        read_parquet(Judged, path)


def test_an_annotation_without_a_form_is_refused_by_name() -> None:
    @dataclass(frozen=True)
    class Loose:
        extra: dict[str, int]

    with pytest.raises(RecordFormatError, match=r"Loose.extra: dict\[str, int\] has no record form"):
        to_json(Loose(extra={}))


# Files -------------------------------------------------------------------------------------------------------------


def test_json_lines_read_back_and_name_the_line_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    points = [Point(x=1, label="near", name="two\nlines"), Point(x=2, label="far")]
    assert write_jsonl(points, path) == 2
    assert read_jsonl(Point, path) == points
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordFormatError, match=r"p.jsonl:2 is no JSON"):
        read_jsonl(Point, path)


def test_an_empty_file_needs_the_class_and_reads_back_empty(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    with pytest.raises(RecordFormatError, match="give write_parquet `cls`"):
        write_parquet([], path)
    assert write_parquet([], path, cls=Point) == 0
    assert read_parquet(Point, path) == []


def test_many_row_groups_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet((Point(x=i, label="near", more=("a",) * (i % 3)) for i in range(1500)), path)
    assert pq.ParquetFile(path).num_row_groups == 3
    assert [p.x for p in iter_parquet(Point, path)] == list(range(1500))
