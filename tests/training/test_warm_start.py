"""The warm start's lessons: demonstrations, and beside them the drill in copying numbers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_records import a_chain, a_rollout, rendered, sampled
from fakes import make_tiny_folder
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from environments.types import Trajectory
from training.copy_drill import CopyingTurn, copying_turns, drill_samples
from training.samples import SampleError
from training.warm_start import imitate

PORT = CopyingTurn(read="port is 8261, want 8403\n", said="sed -i s/8261/8403/ app.ini")
MODE = CopyingTurn(read="mode is 640\n", said="chmod 600 secret")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def tokenizer(policy: Path) -> Tokenizer:
    return AutoTokenizer.from_pretrained(policy)


def demonstration(tokenizer: Tokenizer, name: str, *turns: CopyingTurn) -> Trajectory:
    segments = [
        sampled(*ids) if said else rendered(*ids)
        for turn in turns
        for text, said in ((turn.read, False), (turn.said, True))
        for ids in (tokenizer.encode(text, add_special_tokens=False),)
    ]
    return a_rollout(name, chains=(a_chain(name, *segments),))


def test_only_turns_that_say_a_number_they_have_just_read_are_drilled(tokenizer: Tokenizer) -> None:
    assert copying_turns([demonstration(tokenizer, "a", PORT, MODE)], tokenizer) == (PORT,)


def test_a_drilled_turn_keeps_its_words_and_copies_new_numbers_of_equal_length(tokenizer: Tokenizer) -> None:
    (sample,) = drill_samples((PORT,), tokenizer, 1, random.Random(3))
    read = tokenizer.decode(sample.token_ids[~sample.loss_mask])
    said = tokenizer.decode(sample.token_ids[sample.loss_mask])
    was, wanted = read.removeprefix("port is ").removesuffix("\n").split(", want ")
    assert len(was) == len(wanted) == 4
    assert (was, wanted) != ("8261", "8403")
    assert said == f"sed -i s/{was}/{wanted}/ app.ini"


def test_the_same_seed_drills_the_same_turns_and_another_seed_others(tokenizer: Tokenizer) -> None:
    drawn = [
        [s.token_ids.tolist() for s in drill_samples((PORT,), tokenizer, 4, random.Random(seed))] for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_drill_without_a_number_to_copy_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(SampleError, match="set drill to 0"):
        drill_samples((), tokenizer, 1, random.Random(0))


def test_imitation_lowers_the_loss_of_what_was_demonstrated_and_drilled(
    policy: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    losses: list[float] = []
    taken = imitate(
        policy,
        [demonstration(tokenizer, f"d{i}", PORT) for i in range(4)],
        tmp_path / "out",
        passes=20,
        batch_size=2,
        drill=2,
        learning_rate=3e-3,
        seed=0,
        on_step=lambda step, total, loss: losses.append(loss),
    )
    assert taken == len(losses) == 40
    assert losses[-1] < losses[0] / 2
