"""A run's folder: one process at a time, attempts counted, and a fresh run that continues when it was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.home import Home, note_finished, open_desk, saved_config
from flows.overrides import ConfigError, with_flags
from flows.presets import preset
from infra.store import LocalStore, RunLocked, StoreError
from tasks.progress import Silent

CONFIG = preset("tiny")


def opened(root: Path, *, fresh: bool = False) -> tuple[int, str]:
    """(attempt, salt) of a desk that is opened and closed again, as by a run that was killed."""
    with open_desk(Home(root), CONFIG, Silent(), fresh=fresh) as desk:
        return desk.attempt, desk.salt


def test_attempts_are_counted_and_the_settings_are_kept(tmp_path):
    assert [opened(tmp_path), opened(tmp_path), opened(tmp_path)] == [(1, ""), (2, ""), (3, "")]
    assert saved_config(Home(tmp_path), CONFIG.run_id) == CONFIG
    assert Home(tmp_path).run_ids() == [CONFIG.run_id]


def test_settings_of_another_version_of_the_code_are_said_to_be_that(tmp_path):
    opened(tmp_path)
    path = Home(tmp_path).run(CONFIG.run_id) / "config.json"
    path.write_text(path.read_text().replace('"iterations"', '"steps"'))
    with pytest.raises(ConfigError, match="was started by another version of this code"):
        saved_config(Home(tmp_path), CONFIG.run_id)


def test_two_runs_never_sample_from_one_server_at_a_time_for_each_would_swap_the_others_weights(tmp_path):
    one, other, elsewhere = (
        with_flags(CONFIG, ("engine.kind=vllm", f"engine.url=http://gpu:{port}", f"seed={seed}"))
        for port, seed in ((8000, 1), (8000, 2), (8001, 3))
    )
    home = Home(tmp_path)
    with (
        open_desk(home, one, Silent()),
        open_desk(home, elsewhere, Silent()),
        pytest.raises(RunLocked, match=r"server\.http-gpu-8000 is held by process"),
        open_desk(home, other, Silent()),
    ):
        pass
    with open_desk(home, other, Silent()):
        pass


def test_a_fresh_run_that_was_killed_keeps_its_salt_and_a_finished_one_gets_another(tmp_path):
    assert opened(tmp_path) == (1, "")
    attempt, first = opened(tmp_path, fresh=True)
    assert attempt == 1
    assert first
    assert opened(tmp_path, fresh=True) == (2, first)
    assert opened(tmp_path) == (3, first), "without --fresh it goes on with what the fresh run has done"
    note_finished(Home(tmp_path), CONFIG.run_id)
    assert opened(tmp_path) == (4, first), "a finished run's results are reused"
    attempt, second = opened(tmp_path, fresh=True)
    assert attempt == 1
    assert second not in ("", first)


def test_a_note_half_written_by_a_kill_does_not_count(tmp_path):
    opened(tmp_path)
    (Home(tmp_path).run(CONFIG.run_id) / ".attempts.json").write_text('{"salt": "12')
    assert opened(tmp_path) == (2, "")
    notes = json.loads((Home(tmp_path).run(CONFIG.run_id) / "attempts.json").read_text())
    assert notes == {"salt": "", "attempts": 2}


def test_a_run_is_held_by_one_desk_and_another_run_is_free(tmp_path):
    other = with_flags(CONFIG, ("seed=1",))
    with open_desk(Home(tmp_path), CONFIG, Silent()) as mine:
        with (
            pytest.raises(RunLocked, match=f"run {CONFIG.run_id} is held by process"),
            open_desk(Home(tmp_path), CONFIG, Silent()),
        ):
            pytest.fail("two desks of one run")
        with open_desk(Home(tmp_path), other, Silent()) as theirs:
            assert theirs.run_id != mine.run_id
    with open_desk(Home(tmp_path), CONFIG, Silent()) as again:
        assert again.attempt == 2, "an attempt that found the run locked is none"


def test_everything_lies_below_home_unless_the_environment_says_otherwise(tmp_path, monkeypatch):
    home = Home(tmp_path)
    for name in ("LONGBREATH_STORE", "LONGBREATH_MLFLOW_URI"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(home.store, LocalStore)
    assert home.store.root == tmp_path / "store"
    assert home.mlflow_uri == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("LONGBREATH_STORE", str(tmp_path / "shared"))
    monkeypatch.setenv("LONGBREATH_MLFLOW_URI", "http://127.0.0.1:5000")
    with open_desk(home, CONFIG, Silent()) as desk:
        assert desk.store.root == tmp_path / "shared"
    assert home.mlflow_uri == "http://127.0.0.1:5000"


def test_a_store_address_that_cannot_be_is_refused_before_the_run_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGBREATH_STORE", "gs://bucket/prefix")
    with (
        pytest.raises(StoreError, match="want a folder, or s3://bucket/prefix"),
        open_desk(Home(tmp_path), CONFIG, Silent()),
    ):
        pytest.fail("a desk without a store")
    assert Home(tmp_path).run_ids() == []
