"""Content keys and manifests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from infra.manifest import Manifest, ManifestError, Producer, content_key
from infra.records import from_json, to_json

PRODUCER = Producer(
    stage="judge",
    stage_version=2,
    config_digest="d" * 64,
    code_version="v1",
    seed=7,
    image_digests=(("sandbox", "sha256:1"), ("engine", "sha256:2")),
    attempt=1,
    cpu_s=3.5,
    gpu_s=0.25,
)
MANIFEST = Manifest(
    key="a" * 64,
    kind="judged",
    uri=f"objects/{'b' * 64}.judged.parquet",
    sha256="b" * 64,
    rows=8,
    schema_version=1,
    parents=("c" * 64,),
    producer=PRODUCER,
)


@dataclass(frozen=True)
class Section:
    group_size: int
    temperature: float


def _key(**changes: Any) -> str:
    given = {
        "parents": [MANIFEST],
        "stage": "judge",
        "stage_version": 1,
        "config_section": Section(group_size=8, temperature=1.0),
        "seed": 3,
    }
    return content_key(**{**given, **changes})


def test_a_manifest_reads_back_equal() -> None:
    assert from_json(Manifest, to_json(MANIFEST)) == MANIFEST


def test_equal_work_has_an_equal_key() -> None:
    assert _key() == _key(config_section={"group_size": 8, "temperature": 1.0})
    assert _key() == "3ed0d59bc9e64910d83c8523ebd584a1ef32c14d60a0520ffe9eaa71225ae5fb"


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "train"},
        {"stage_version": 2},
        {"config_section": Section(group_size=4, temperature=1.0)},
        {"seed": 4},
        {"parents": []},
        {"parents": [MANIFEST, MANIFEST]},
        {"parents": [dataclasses.replace(MANIFEST, sha256="e" * 64, uri=f"objects/{'e' * 64}.judged.parquet")]},
    ],
    ids=lambda c: next(iter(c)),
)
def test_any_change_of_the_work_changes_the_key(change: dict[str, Any]) -> None:
    assert _key(**change) != _key()


def test_a_parent_counts_by_content_and_not_by_what_it_cost() -> None:
    cheaper = dataclasses.replace(MANIFEST, producer=dataclasses.replace(PRODUCER, attempt=0, cpu_s=1.0))
    assert _key(parents=[cheaper]) == _key()
    assert cheaper.same_artifact(MANIFEST)
    assert not dataclasses.replace(MANIFEST, rows=9).same_artifact(MANIFEST)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"key": "abc"}, "manifest.key is 'abc'; want 64 hex digits"),
        ({"sha256": "B" * 64}, "manifest.sha256 is"),
        ({"kind": "../x"}, "manifest.kind is '../x'"),
        ({"rows": -1}, "manifest.rows is -1"),
        ({"uri": "/etc/passwd"}, "manifest.uri is '/etc/passwd'"),
        ({"uri": f"objects/{'b' * 64}/../../x"}, "manifest.uri is"),
        ({"uri": f"objects/{'f' * 64}.x"}, "manifest.uri is"),
    ],
)
def test_a_manifest_that_contradicts_itself_cannot_be_made(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ManifestError, match=complaint):
        dataclasses.replace(MANIFEST, **change)
