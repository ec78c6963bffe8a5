"""The local store: the contract, and what only a file system can do to it. Disks, users and kills are real."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from store_contract import PRODUCER, ROWS, Row, StoreContract, key_of, write

from infra.store import LocalStore, RunLocked, Store, StoreConflict, StoreError

# Forked, so that a process starts in milliseconds and most kills hit the store's work, not imports.
FORK = multiprocessing.get_context("fork")


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "store")

    def reopen(self, store: Store, tmp_path: Path) -> Store:
        return LocalStore(store.root)

    def overwrite(self, store: Store, name: str, data: bytes) -> None:
        (store.root / name).write_bytes(data)

    def remove(self, store: Store, name: str) -> None:
        (store.root / name).unlink()


def _start(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    """A process that runs `target(pipe, *arguments)`, and our end of the pipe."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def test_a_store_that_is_only_read_is_not_made(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    assert store.find(key_of("a")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_moved_store_is_still_whole(tmp_path: Path) -> None:
    made = LocalStore(tmp_path / "old").publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
    (tmp_path / "old").rename(tmp_path / "new")
    moved = LocalStore(tmp_path / "new")
    assert moved.find(key_of("a")) == made
    assert moved.path(made).read_text() == "hello"


def test_content_that_a_killed_writer_did_not_commit_is_taken_up(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    made = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
    (tmp_path / "manifests" / f"{made.key}.json").unlink()
    assert store.find(made.key) is None
    assert store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER) == made


def test_uncommitted_content_that_is_not_what_its_name_says_is_set_aside(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    made = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
    (tmp_path / "manifests" / f"{made.key}.json").unlink()
    (tmp_path / made.uri).write_text("hel")
    assert store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER) == made
    assert store.path(made).read_text() == "hello"
    (aside,) = (tmp_path / "quarantine").iterdir()
    assert "does not have the content that its name says" in (aside / "reason.txt").read_text()


# Kills ---------------------------------------------------------------------------------------------------------------


def _publish_without_end(pipe: Connection, root: Path) -> None:
    store, number = LocalStore(root), len(list(root.glob("manifests/*.json")))
    pipe.send("ready")
    while True:
        store.publish(key_of(f"w{number}"), "policy", partial(_eight_files, number), producer=PRODUCER)
        pipe.send(number)
        number += 1


def _eight_files(number: int, path: Path) -> None:
    path.mkdir()
    for i in range(8):
        (path / f"{i}.bin").write_bytes(bytes([number % 256, i]) * 20_000)


def _kill_writers(root: Path, *, kills: int) -> tuple[int, int]:
    """Kill a busy writer again and again; after each kill all that is committed must verify.

    Returns how many artifacts there are and how many half-made things the kills left in tmp/.
    """
    store, moments, residues, published = LocalStore(root), random.Random(11), 0, 0
    for _ in range(kills):
        writer, pipe = _start(_publish_without_end, root)
        assert pipe.recv() == "ready"
        started = time.monotonic()
        pipe.recv()  # one is published: now we know how long that takes here, and when the next will be under way
        time.sleep(moments.uniform(0.0, 1.5) * (time.monotonic() - started))
        writer.kill()
        writer.join()
        assert writer.exitcode == -9
        residues += len(list(root.glob("tmp/*")))
        store.sweep()
        keys = [path.stem for path in root.glob("manifests/*")]
        assert all(store.find(key) for key in keys)
        assert len(keys) > published
        published = len(keys)
    return published, residues


def test_a_writer_killed_at_any_moment_leaves_artifacts_absent_or_whole(tmp_path: Path) -> None:
    published, residues = _kill_writers(tmp_path, kills=12)
    assert published >= 12
    assert residues > 0, "no kill came in the middle of a publish: this run proves nothing"
    assert not (tmp_path / "quarantine").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_writer_killed_two_hundred_times_leaves_artifacts_absent_or_whole(tmp_path: Path) -> None:
    published, residues = _kill_writers(tmp_path, kills=200)
    assert published >= 200
    assert residues > 20
    assert not (tmp_path / "quarantine").exists()


def _publish_when_told(pipe: Connection, root: Path) -> None:
    def build(path: Path) -> None:
        path.write_text("x")
        pipe.send("in")
        pipe.recv()

    LocalStore(root).publish(key_of("a"), "report", build, producer=PRODUCER)


def test_sweeping_leaves_the_half_made_things_of_living_writers_alone(tmp_path: Path) -> None:
    writer, pipe = _start(_publish_when_told, tmp_path)
    assert pipe.recv() == "in"
    assert LocalStore(tmp_path).sweep() == 0
    pipe.send("go on")
    writer.join()
    assert LocalStore(tmp_path).find(key_of("a")) is not None


# Several processes ---------------------------------------------------------------------------------------------------


def _publish_at_the_signal(pipe: Connection, root: Path, text: str) -> None:
    store = LocalStore(root)
    pipe.send("ready")
    pipe.recv()
    try:
        store.publish(key_of("a"), "report", write(text), producer=PRODUCER)
        pipe.send("published")
    except StoreConflict:
        pipe.send("conflict")


def _race(root: Path, texts: list[str]) -> list[str]:
    pipes = [_start(_publish_at_the_signal, root, text)[1] for text in texts]
    assert [pipe.recv() for pipe in pipes] == ["ready"] * len(texts)
    for pipe in pipes:
        pipe.send("go")
    return [pipe.recv() for pipe in pipes]


@pytest.mark.parametrize("turn", range(3))
def test_racing_writers_of_equal_content_all_succeed(turn: int, tmp_path: Path) -> None:
    assert _race(tmp_path, ["same"] * 6) == ["published"] * 6
    assert LocalStore(tmp_path).find(key_of("a")) is not None


@pytest.mark.parametrize("turn", range(3))
def test_of_racing_writers_of_different_content_exactly_one_wins(turn: int, tmp_path: Path) -> None:
    ends = _race(tmp_path, ["a", "b", "c", "d", "e", "f"])
    assert sorted(ends) == ["conflict"] * 5 + ["published"]
    store = LocalStore(tmp_path)
    found = store.find(key_of("a"))
    assert found is not None
    assert store.path(found).read_text() == "abcdef"[ends.index("published")]


def _hold(pipe: Connection, root: Path) -> None:
    with LocalStore(root).lock("run-1"):
        pipe.send("held")
        pipe.recv()


def test_a_second_process_is_told_who_holds_the_run_and_a_killed_holder_frees_it_at_once(tmp_path: Path) -> None:
    holder, pipe = _start(_hold, tmp_path)
    assert pipe.recv() == "held"
    store = LocalStore(tmp_path)
    with pytest.raises(RunLocked, match=f"run run-1 is held by process {holder.pid} on host "), store.lock("run-1"):
        pass
    holder.kill()
    holder.join()
    with store.lock("run-1"):
        pass


# Disks and users -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount") or "mount is not installed"
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("cannot mount a tmpfs here (needs root with CAP_SYS_ADMIN); the file-size test covers the path")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def _large(path: Path) -> None:
    path.write_bytes(bytes(3_000_000))


def test_a_full_disk_is_said_nothing_is_lost_and_it_works_again_once_there_is_room(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    made = store.publish(key_of("a"), "report", write("kept"), producer=PRODUCER)
    with pytest.raises(StoreError, match="No space left on device") as failure:
        store.publish(key_of("big"), "report", _large, producer=PRODUCER)
    assert "free some space, then run the same command again. Everything published before is intact" in str(failure)
    assert store.find(key_of("big")) is None
    assert store.find(key_of("a")) == made
    assert list((small_disk / "tmp").iterdir()) == []
    store.publish(key_of("small"), "report", write("fits"), producer=PRODUCER)


def test_a_disk_that_fills_while_records_are_written_is_said_too(small_disk: Path) -> None:
    store, noise = LocalStore(small_disk), random.Random(1)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_900_000))
    rows = [Row(number=i, text=noise.randbytes(400).hex()) for i in range(1000)]
    with pytest.raises(StoreError, match=r"the disk is full \(.*free some space"):
        store.publish_records(key_of("rows"), "rows", rows, cls=Row, producer=PRODUCER)
    ballast.unlink()
    assert store.publish_records(key_of("rows"), "rows", rows, cls=Row, producer=PRODUCER).rows == 1000


def test_a_read_only_disk_is_said_and_can_still_be_read(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    made = store.publish_records(key_of("a"), "rows", ROWS, cls=Row, producer=PRODUCER)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreError, match=r"Read-only file system.*the folder is not writable by this user"):
        store.publish(key_of("b"), "report", write("new"), producer=PRODUCER)
    with pytest.raises(StoreError, match=r"locking run run-1 failed"), store.lock("run-1"):
        pass
    assert store.find(key_of("a")) == made
    assert store.read_records(Row, made) == ROWS


def _publish_restricted(pipe: Connection, root: Path, restrict: Callable[[], None]) -> None:
    """Try to publish in a process that has given something up; send the error, then what can still be read."""
    restrict()
    store = LocalStore(root)
    try:
        store.publish(key_of("b"), "report", _large, producer=PRODUCER)
        pipe.send("published")
    except StoreError as error:
        pipe.send(str(error))
    found = store.find(key_of("a"))
    pipe.send(found and store.path(found).read_text())


def _no_large_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


def _no_privileges() -> None:
    if os.getuid() == 0:
        os.setuid(65534)


def test_a_file_larger_than_allowed_is_said_and_nothing_is_lost(tmp_path: Path) -> None:
    LocalStore(tmp_path).publish(key_of("a"), "report", write("kept"), producer=PRODUCER)
    _, pipe = _start(_publish_restricted, tmp_path, _no_large_files)
    told = pipe.recv()
    assert "File too large" in told
    assert "raise `ulimit -f`" in told
    assert pipe.recv() == "kept"


def test_a_folder_that_may_not_be_written_is_said_and_can_still_be_read() -> None:
    with tempfile.TemporaryDirectory(prefix="longbreath-test.") as folder:  # pytest's own are closed to other users
        root = Path(folder)
        LocalStore(root).publish(key_of("a"), "report", write("kept"), producer=PRODUCER)
        for path in (root, *root.iterdir()):
            path.chmod(0o555)
        _, pipe = _start(_publish_restricted, root, _no_privileges)
        told, kept = pipe.recv(), pipe.recv()
        for path in (root, *root.iterdir()):
            path.chmod(0o755)
    assert "Permission denied" in told
    assert "mount it read-write, or change its owner or mode, then run the same command again" in told
    assert kept == "kept"
