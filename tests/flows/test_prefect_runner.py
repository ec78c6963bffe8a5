"""Stages as Prefect tasks, on a real server: cached by content key, verified, and retried only where that can help.

Runs with `pytest -m slow`: the server takes a while to start.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from flows.engine import PrefectRunner, wait_for_prefect
from infra.store import LocalStore, StoreError
from tasks.progress import Silent
from tasks.stage import Desk, Stage, Work, perform
from tasks.workshop import EngineConfig, Workshop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = Stage(name="count", version=1, kind="report")
NUM_STAGES = 8


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory):
    """A server of this module's own; results lie in a folder of their own too."""
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, PREFECT_LOGGING_LEVEL, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    storage = tmp_path_factory.mktemp("prefect")
    settings = {PREFECT_LOCAL_STORAGE_PATH: storage, PREFECT_LOGGING_LEVEL: "CRITICAL"}
    with prefect_test_harness(server_startup_timeout=180), temporary_settings(settings):
        yield


def a_desk(tmp_path: Path) -> Desk:
    workshop = Workshop(EngineConfig(), tmp_path / "work")
    store = LocalStore(tmp_path / "store")
    return Desk(run_id="test-1", store=store, workshop=workshop, progress=Silent(), work=tmp_path / "work", seed=0)


class Counted:
    """Work that notes each attempt; `faults` are raised by the first attempts, in order."""

    def __init__(self, tmp_path: Path, *faults: Exception) -> None:
        self.attempts = 0
        self._section, self._faults = str(tmp_path), list(faults)

    def work(self, text: str = "hello") -> Work:
        def make(out: Path, scratch: Path) -> int:
            self.attempts += 1
            if self._faults:
                raise self._faults.pop(0)
            out.write_text(text)
            return 1

        return Work(stage=COUNT, parents=(), section=self._section, make=make)


def test_a_stage_is_cached_by_its_content_key_and_said_to_be_reused(tmp_path):
    desk, counted = a_desk(tmp_path), Counted(tmp_path)
    run = PrefectRunner(desk)
    first = run(counted.work())
    assert desk.progress.lines == []
    assert run(counted.work()) == first == PrefectRunner(desk)(counted.work())
    assert counted.attempts == 1
    assert desk.progress.lines == ["[dim]count: done before, reused[/]"] * 2


def test_a_result_that_broke_in_the_store_is_a_miss_and_made_anew(tmp_path):
    desk, counted = a_desk(tmp_path), Counted(tmp_path)
    run = PrefectRunner(desk)
    first = run(counted.work())
    (desk.store.root / first.uri).write_text("changed")
    again = run(counted.work("made anew"))
    assert counted.attempts == 2
    assert again.sha256 != first.sha256
    assert desk.store.path(again).read_text() == "made anew"
    assert run(counted.work()) == again, "Prefect now remembers the new one"


def test_the_stores_word_counts_where_prefect_remembers_another(tmp_path):
    desk, counted = a_desk(tmp_path), Counted(tmp_path)
    run = PrefectRunner(desk)
    first = run(counted.work())
    (desk.store.root / first.uri).write_text("changed")
    mended = perform(desk, counted.work("made anew without Prefect"))
    assert run(counted.work()) == mended
    assert desk.store.path(mended).read_text() == "made anew without Prefect"
    assert counted.attempts == 2


@pytest.mark.parametrize("fault", [StoreError("the disk hiccuped"), OSError("the network went")])
def test_what_may_pass_by_itself_is_tried_again(tmp_path, fault):
    desk, counted = a_desk(tmp_path), Counted(tmp_path, fault, fault)
    manifest = PrefectRunner(desk, retry_delay_s=0)(counted.work())
    assert counted.attempts == 3
    assert desk.store.path(manifest).read_text() == "hello"


def test_a_fault_that_stays_is_raised_as_it_is_after_three_attempts(tmp_path):
    counted = Counted(tmp_path, *[StoreError("the disk is gone")] * 5)
    with pytest.raises(StoreError, match="the disk is gone"):
        PrefectRunner(a_desk(tmp_path), retry_delay_s=0)(counted.work())
    assert counted.attempts == 3


@pytest.mark.parametrize("fault", [ValueError("bad input"), KeyError("a bug")])
def test_bad_input_and_bugs_fail_at_once(tmp_path, fault):
    counted = Counted(tmp_path, fault)
    with pytest.raises(type(fault)):
        PrefectRunner(a_desk(tmp_path), retry_delay_s=0)(counted.work())
    assert counted.attempts == 1


def test_the_server_is_waited_for_and_that_is_said():
    progress = Silent()
    wait_for_prefect(progress)
    assert progress.lines[-1].startswith("Prefect: ready after ")


def test_what_prefect_costs_a_stage_is_measured_apart_from_the_stages_own_time(tmp_path):
    from prefect import flow

    run = PrefectRunner(a_desk(tmp_path))
    counts = (Counted(tmp_path / str(n)) for n in itertools.count())

    @flow(name="overhead")
    def overhead() -> None:
        for _, counted in zip(range(NUM_STAGES), counts, strict=False):
            run(counted.work())

    overhead()
    print(f"\nPrefect: {run.overhead_s / NUM_STAGES * 1000:.0f} ms a stage")
    assert 0 < run.overhead_s < NUM_STAGES
