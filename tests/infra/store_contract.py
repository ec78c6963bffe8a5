"""What every store must do. A subclass says which store, and how to damage what it holds from outside."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.manifest import Manifest, Producer, content_key
from infra.records import RecordFormatError
from infra.store import CorruptArtifact, RunLocked, Store, StoreConflict, StoreError

SCHEMA_VERSION = 5

PRODUCER = Producer(stage="judge", stage_version=1, config_digest="d" * 64, code_version="v1", seed=0, cpu_s=1.5)


@dataclass(frozen=True)
class Row:
    number: int
    text: str


ROWS = [Row(number=1, text="one"), Row(number=2, text="two")]


def key_of(name: str) -> str:
    return content_key(parents=(), stage=name, stage_version=1, config_section={}, seed=0)


def write(text: str) -> Callable[[Path], None]:
    def build(path: Path) -> None:
        path.write_text(text)

    return build


def write_folder(path: Path) -> int:
    (path / "deep" / "deeper").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "deep" / "deeper" / "weights.bin").write_bytes(bytes(range(256)) * 64)
    (path / "deep" / "empty").write_bytes(b"")
    return 3


class StoreContract(ABC):
    """Subclass with a `store` fixture."""

    @abstractmethod
    def reopen(self, store: Store, tmp_path: Path) -> Store:
        """The same store as another process on another machine would open it."""

    @abstractmethod
    def overwrite(self, store: Store, name: str, data: bytes) -> None:
        """Replace the stored file `name` (relative to the store) behind the store's back."""

    @abstractmethod
    def remove(self, store: Store, name: str) -> None:
        """Remove a stored file behind the store's back."""

    def test_what_was_never_published_is_absent(self, store: Store) -> None:
        assert store.find(key_of("a")) is None

    def test_a_file_is_found_and_opened_by_another_process(self, store: Store, tmp_path: Path) -> None:
        made = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER, name="report.html")
        other = self.reopen(store, tmp_path)
        found = other.find(key_of("a"))
        assert found == made
        assert made.uri == f"objects/{made.sha256}.report.html"
        assert other.path(made).read_text() == "hello"
        assert made.producer == PRODUCER

    def test_a_folder_keeps_its_tree(self, store: Store, tmp_path: Path) -> None:
        made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
        other = self.reopen(store, tmp_path)
        folder = other.path(made)
        files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
        assert files == {"config.json": 2, "deep/deeper/weights.bin": 16384, "deep/empty": 0}
        assert made.rows == 3

    def test_records_read_back_with_their_count_version_and_parents(self, store: Store, tmp_path: Path) -> None:
        parent = store.publish(key_of("p"), "selection", write("p"), producer=PRODUCER)
        made = store.publish_records(key_of("a"), "rows", ROWS, cls=Row, producer=PRODUCER, parents=[parent])
        assert (made.rows, made.schema_version, made.parents) == (2, 5, (parent.key,))
        assert self.reopen(store, tmp_path).read_records(Row, made) == ROWS
        with pytest.raises(RecordFormatError, match="holds records 'Row'; want 'Producer'"):
            store.read_records(Producer, made)

    def test_equal_content_published_again_answers_the_first_manifest(self, store: Store) -> None:
        first = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
        again = Producer(stage="judge", stage_version=1, config_digest="d" * 64, code_version="v1", seed=0, attempt=1)
        assert store.publish(key_of("a"), "report", write("hello"), producer=again) == first

    def test_other_content_under_a_key_is_refused_and_the_first_stays(self, store: Store) -> None:
        first = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
        with pytest.raises(StoreConflict, match=r"already holds report .* raise the stage's version"):
            store.publish(key_of("a"), "report", write("other"), producer=PRODUCER)
        assert store.find(key_of("a")) == first
        assert store.path(first).read_text() == "hello"

    def test_two_keys_may_share_one_content(self, store: Store) -> None:
        first = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
        second = store.publish(key_of("b"), "report", write("hello"), producer=PRODUCER)
        assert first.uri == second.uri
        assert store.find(key_of("a")) == first
        assert store.find(key_of("b")) == second

    def test_a_builder_that_fails_publishes_nothing_and_its_error_escapes(self, store: Store) -> None:
        def fail(path: Path) -> None:
            path.write_text("half")
            raise ZeroDivisionError("in the stage")

        with pytest.raises(ZeroDivisionError, match="in the stage"):
            store.publish(key_of("a"), "report", fail, producer=PRODUCER)
        assert store.find(key_of("a")) is None
        assert list((store.root / "tmp").iterdir()) == []

    def test_a_builder_that_makes_no_file_or_a_link_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="the builder made no file"):
            store.publish(key_of("a"), "report", lambda _: None, producer=PRODUCER)
        with pytest.raises(StoreError, match="the builder made no file"):
            store.publish(key_of("a"), "report", lambda path: path.mkdir(), producer=PRODUCER)
        with pytest.raises(StoreError, match="is no plain file or folder"):
            store.publish(key_of("a"), "report", lambda p: p.symlink_to("/etc/passwd"), producer=PRODUCER)

    def test_names_and_keys_that_are_none_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"artifact name '../x'"):
            store.publish(key_of("a"), "report", write("x"), producer=PRODUCER, name="../x")
        with pytest.raises(StoreError, match=r"'../../etc' is no content key"):
            store.find("../../etc")

    def _expect_redone(
        self, store: Store, made: Manifest, caplog: pytest.LogCaptureFixture, tmp_path: Path, warning: str
    ) -> None:
        """The broken artifact counts as absent, says so, and is made anew by the same publish."""
        other = self.reopen(store, tmp_path)
        with caplog.at_level(logging.WARNING):
            assert other.find(made.key) is None
        assert warning in caplog.text
        assert "quarantine/" in caplog.text
        assert other.publish(made.key, "policy", write_folder, producer=PRODUCER) == made
        assert other.find(made.key) == made

    def test_changed_content_is_quarantined_and_counts_as_absent(
        self, store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
        self.overwrite(store, f"{made.uri}/deep/deeper/weights.bin", b"flipped")
        self._expect_redone(store, made, caplog, tmp_path, f"want {made.sha256}")

    def test_a_missing_file_of_a_folder_is_noticed(
        self, store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
        self.remove(store, f"{made.uri}/deep/empty")
        self._expect_redone(store, made, caplog, tmp_path, f"want {made.sha256}")

    def test_missing_content_is_noticed(self, store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
        made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
        for name in ("config.json", "deep/deeper/weights.bin", "deep/empty"):
            self.remove(store, f"{made.uri}/{name}")
        self._expect_redone(store, made, caplog, tmp_path, f"want {made.sha256}")

    @pytest.mark.parametrize(
        ("data", "warning"),
        [(b"", "is no JSON"), (b"{}", "want keys"), (b'{"record":"Manifest","schema_version":99,"data":{}}', "99")],
        ids=["empty", "another shape", "another version"],
    )
    def test_a_broken_manifest_is_quarantined(
        self, data: bytes, warning: str, store: Store, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
        self.overwrite(store, f"manifests/{made.key}.json", data)
        self._expect_redone(store, made, caplog, tmp_path, warning)

    def test_content_that_breaks_after_it_was_found_is_not_opened(self, store: Store, tmp_path: Path) -> None:
        made = store.publish(key_of("a"), "report", write("hello"), producer=PRODUCER)
        self.overwrite(store, made.uri, b"jello")
        with pytest.raises(CorruptArtifact, match=r"moved to quarantine; run the same command again"):
            self.reopen(store, tmp_path).path(made)
        assert store.find(made.key) is None

    def test_a_run_is_held_by_one_at_a_time(self, store: Store, tmp_path: Path) -> None:
        other = self.reopen(store, tmp_path)
        with store.lock("run-1"):
            with (
                pytest.raises(RunLocked, match=r"run run-1 is held by process \d+ on host .*\(kill \d+\)"),
                other.lock("run-1"),
            ):
                pass
            with other.lock("run-2"):
                pass
        with other.lock("run-1"):
            pass

    def test_a_run_id_that_is_a_path_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"run id '../x' is no name"), store.lock("../x"):
            pass
