"""What is thrown away: artifacts that only old runs used, and what nobody touched for long; nothing else."""

from __future__ import annotations

import os

from infra.manifest import Producer
from infra.retention import drop_artifacts, remove_untouched
from infra.store import LocalStore

PRODUCER = Producer(stage="count", stage_version=1, config_digest="d" * 64, code_version="v1", seed=0)


def published(store: LocalStore, key: str, text: str):
    return store.publish(key * 64, "report", lambda path: path.write_text(text), producer=PRODUCER)


def test_what_only_old_runs_used_goes_and_what_others_use_stays(tmp_path):
    store = LocalStore(tmp_path)
    old, shared, young = published(store, "a", "old"), published(store, "b", "shared"), published(store, "c", "young")
    assert drop_artifacts(store, [old, shared, old], [shared, young]) == 3
    assert store.find(old.key) is None
    assert [store.path(m).read_text() for m in (shared, young)] == ["shared", "young"]
    assert not (tmp_path / "quarantine").exists(), "what was dropped counts as absent, not as broken"


def test_equal_content_under_another_key_stays(tmp_path):
    store = LocalStore(tmp_path)
    old, young = published(store, "a", "same"), published(store, "b", "same")
    assert old.uri == young.uri
    assert drop_artifacts(store, [old], [young]) == 0
    assert store.find(old.key) is None
    assert store.path(young).read_text() == "same"


def test_a_folder_is_as_young_as_the_newest_file_in_it(tmp_path):
    for name, at_s in (("old", 100.0), ("busy", 200.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal").write_text("12345")
        os.utime(tmp_path / name / "journal", (at_s, at_s))
        os.utime(tmp_path / name, (100.0, 100.0))
    assert remove_untouched(tmp_path, since_s=150.0) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["busy"]
    assert remove_untouched(tmp_path / "none", since_s=150.0) == 0
