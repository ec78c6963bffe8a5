"""Policy 0 is a whole model folder, and the one that was pinned, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks_fakes import COUNT, desk_at, model_folder

from infra.digests import digest_folder
from tasks.policies import Policy, adopt
from tasks.stage import Work, perform
from training.policy import POLICY, PolicyError


def test_a_model_folder_is_adopted_once_whatever_it_is_called(tmp_path):
    desk, given = desk_at(tmp_path), model_folder(tmp_path / "given")
    first = perform(desk, adopt(given, digest=digest_folder(given)))
    given.rename(tmp_path / "moved")
    again = perform(desk, adopt(tmp_path / "moved", digest=None))
    assert again == first
    folder = Policy(manifest=first, version=0).folder(desk)
    assert digest_folder(folder) == digest_folder(tmp_path / "moved")


def test_other_weights_are_another_policy(tmp_path):
    desk = desk_at(tmp_path)
    one = perform(desk, adopt(model_folder(tmp_path / "one"), digest=None))
    two = perform(desk, adopt(model_folder(tmp_path / "two", weights=b"other"), digest=None))
    assert one.key != two.key


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_its_name(tmp_path, name):
    given = model_folder(tmp_path / "given")
    (given / name).unlink()
    said = "safetensors" if name.startswith("model") else name
    with pytest.raises(PolicyError, match=f"{said} missing; copy the whole folder again"):
        adopt(given, digest=None)


def test_no_folder_and_the_wrong_folder_are_refused(tmp_path):
    with pytest.raises(PolicyError, match="no model folder at"):
        adopt(tmp_path / "nothing", digest=None)
    given = model_folder(tmp_path / "given")
    pinned = digest_folder(given)
    (given / "model.safetensors").write_bytes(b"edited")
    with pytest.raises(PolicyError, match=f"want {pinned[:12]}: it was changed; restore or re-pin it"):
        adopt(given, digest=pinned)


def test_the_policy_of_a_training_step_is_its_part_of_that_name(tmp_path):
    desk = desk_at(tmp_path)

    def make(out: Path, scratch: Path) -> int:
        model_folder(out / POLICY)
        (out / "report.json").write_text("{}")
        return 0

    step = perform(desk, Work(stage=COUNT, parents=(), section=None, make=make))
    assert Policy(manifest=step, version=1).folder(desk) == desk.store.path(step) / POLICY
