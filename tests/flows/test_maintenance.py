"""The weekly tidying of a real home: an old run's artifacts go, its record stays, and it can be done again."""

from __future__ import annotations

import os
from dataclasses import replace

from flows_fakes import CONFIG, a_run

from flows.history import RunNotes
from flows.home import Home
from flows.maintenance import expire_runs


def test_an_old_runs_artifacts_go_unless_a_young_run_uses_them(tmp_path):
    home, young = Home(tmp_path), replace(CONFIG, name="young")
    a_run(tmp_path)
    a_run(tmp_path, young, iterations=1)
    old_notes, young_notes = (RunNotes(home, c.run_id) for c in (CONFIG, young))
    first, second = old_notes.manifests("curriculum")
    assert young_notes.manifests("curriculum") == [first], "equal work is shared"
    os.utime(old_notes.folder / "stages.jsonl", (100.0, 100.0))

    runs, freed = expire_runs(home, since_s=200.0)
    assert runs == 1
    assert freed > 0
    assert home.store.find(second.key) is None
    assert home.store.find(first.key) == first
    assert old_notes.manifests("curriculum") == []
    assert (old_notes.folder / "config.json").exists()
    assert (old_notes.folder / "expired.jsonl").exists()
    assert expire_runs(home, since_s=200.0) == (0, 0)


def test_a_store_that_others_may_share_is_left_alone(tmp_path, monkeypatch):
    a_run(tmp_path)
    os.utime(Home(tmp_path).run(CONFIG.run_id) / "stages.jsonl", (100.0, 100.0))
    monkeypatch.setenv("LONGBREATH_STORE", str(tmp_path / "shared"))
    assert expire_runs(Home(tmp_path), since_s=200.0) == (0, 0)
