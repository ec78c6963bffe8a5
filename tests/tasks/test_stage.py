"""A stage is done once: found by its key, never half published, and gone on with after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tasks_fakes import COUNT, counting, desk_at

from infra.store import CorruptArtifact
from tasks.stage import Work, perform


def test_done_work_is_found_by_its_key_and_not_done_again(tmp_path):
    desk, made = desk_at(tmp_path, attempt=2), []
    first = perform(desk, counting(made, iteration=4, name="hello.txt"))
    again = perform(desk_at(tmp_path, attempt=3), counting(made, iteration=4, name="hello.txt"))
    assert made == ["made"]
    assert again == first
    assert (first.kind, first.rows, first.parents) == ("report", 3, ())
    assert (first.producer.stage, first.producer.attempt, first.producer.seed) == ("count", 2, 0)
    assert desk.store.path(first).read_text() == "hello"


def test_what_is_reused_is_said_with_its_iteration(tmp_path):
    desk = desk_at(tmp_path)
    perform(desk, counting([], iteration=4))
    assert desk.progress.lines == []
    perform(desk, counting([], iteration=4))
    assert desk.progress.lines == ["[dim]count 5: done before, reused[/]"]


def test_the_key_changes_with_all_that_decides_the_result(tmp_path):
    desk = desk_at(tmp_path)
    parent = perform(desk, counting([], section="parent"))
    other = perform(desk, counting([], section="other parent", said=lambda: "other"))
    base = counting([], parents=(parent,))
    keys = {
        "base": base.key(desk),
        "parents": replace(base, parents=(other,)).key(desk),
        "no parents": replace(base, parents=()).key(desk),
        "section": replace(base, section={"rate": 2}).key(desk),
        "stage": replace(base, stage=replace(COUNT, name="recount")).key(desk),
        "version": replace(base, stage=replace(COUNT, version=2)).key(desk),
        "seed": base.key(replace(desk, seed=1)),
        "salt": base.key(replace(desk, salt="fresh")),
    }
    assert len(set(keys.values())) == 8


def test_the_key_does_not_change_with_who_does_the_work_or_when(tmp_path):
    base, desk = counting([]), desk_at(tmp_path)
    assert base.key(replace(desk, run_id="test-2", attempt=7)) == base.key(desk)
    assert replace(base, iteration=9).key(desk) == base.key(desk)


def test_a_parent_made_anew_with_the_same_content_is_the_same_parent(tmp_path):
    desk = desk_at(tmp_path)
    here = perform(desk, counting([], section="parent"))
    there = perform(desk_at(tmp_path / "elsewhere", seed=5), counting([], section="parent"))
    assert here.key != there.key
    assert counting([], parents=(here,)).key(desk) == counting([], parents=(there,)).key(desk)


def test_a_make_that_raises_publishes_nothing_and_the_next_goes_on_from_its_scratch(tmp_path):
    desk = desk_at(tmp_path)
    seen: list[list[str]] = []

    def make(out: Path, scratch: Path) -> int:
        seen.append(sorted(p.name for p in scratch.iterdir()))
        assert not out.exists()
        (scratch / "half").write_text("a long way")
        if len(seen) == 1:
            out.write_text("not whole")
            raise RuntimeError("power cut")
        out.write_text((scratch / "half").read_text())
        return 1

    work = Work(stage=COUNT, parents=(), section=None, make=make)
    with pytest.raises(RuntimeError, match="power cut"):
        perform(desk, work)
    assert desk.store.find(work.key(desk)) is None
    manifest = perform(desk, work)
    assert seen == [[], ["half"]]
    assert desk.store.path(manifest).read_text() == "a long way"
    assert list((tmp_path / "work").iterdir()) == []


def test_scratch_of_a_stage_killed_right_after_publishing_is_removed(tmp_path):
    desk, kept = desk_at(tmp_path), []

    def make(out: Path, scratch: Path) -> int:
        kept.append(scratch)
        out.write_text("whole")
        return 1

    work = Work(stage=COUNT, parents=(), section=None, make=make)
    perform(desk, work)
    kept[0].mkdir()
    (kept[0] / "trajectories.jsonl").write_text("left")
    perform(desk, work)
    assert len(kept) == 1
    assert not kept[0].exists()


def test_a_result_that_broke_in_the_store_is_made_anew(tmp_path):
    desk, made = desk_at(tmp_path), []
    first = perform(desk, counting(made))
    (desk.store.root / first.uri).write_text("changed")
    assert perform(desk, counting(made)).sha256 == first.sha256
    assert made == ["made", "made"]
    assert desk.store.path(first).read_text() == "hello"


def test_a_result_that_breaks_under_its_reader_is_refused(tmp_path):
    desk = desk_at(tmp_path)
    first = perform(desk, counting([]))
    (desk.store.root / first.uri).unlink()
    with pytest.raises(CorruptArtifact, match="run the same command again"):
        desk.store.path(first)


def test_two_runs_that_do_equal_work_at_one_moment_do_not_touch_each_other(tmp_path):
    mine, theirs = desk_at(tmp_path), desk_at(tmp_path, run_id="test-2")
    inner = []

    def make(out: Path, scratch: Path) -> int:
        out.write_text("equal")
        if not inner:
            inner.append("begun")
            inner[0] = perform(theirs, Work(stage=COUNT, parents=(), section=None, make=make))
        return 1

    outer = perform(mine, Work(stage=COUNT, parents=(), section=None, make=make))
    assert outer == inner[0]
    assert list((tmp_path / "work").iterdir()) == []
