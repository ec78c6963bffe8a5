"""Rare words: found in the text of what was said, however it is cut into tokens."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from training.config import TrainConfig
from training.policy import train_tokenizer
from training.rare import RareWords
from training.samples import Sample
from training.trainer import Trainer

Make = Callable[..., list[Sample]]
WORDS = ("wait", "but", "verify")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    """Bytes and a few merges: ' wait' is one token, the other words are several."""
    tokenizer = train_tokenizer([" wait wait wait"], (), 270)
    tokenizer.save_pretrained(tmp_path_factory.mktemp("words"))
    return tokenizer


def said(tokenizer, text: str, rendered: str = "user: wait, verify\n") -> Sample:
    """A sample whose prompt is `rendered` and whose completion is `text`."""
    prompt, completion = tokenizer.encode(rendered), tokenizer.encode(text)
    length = len(prompt) + len(completion)
    mask = np.arange(length) >= len(prompt)
    return Sample(
        token_ids=np.asarray(prompt + completion, dtype=np.int32),
        loss_mask=mask,
        behaviour_logprobs=np.where(mask, -1, 0).astype(np.float32),
        advantages=mask.astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        weight=1.0,
        temperature=1.0,
        chain_id="c",
        rollout_id="r",
        group_id="g",
    )


@pytest.mark.parametrize(
    ("text", "words", "counts"),
    [
        ("no, wait", ["Ġwait"], {"wait": 1}),
        ("Wait: verify", ["Wait", "verify"], {"wait": 1, "verify": 1}),
        ("BUT", ["BUT"], {"but": 1}),
        ("attribute butter awaiting wait_for verify2", [], {}),
        ("./verify\nbut wait", ["verify", "but", "Ġwait"], {"verify": 1, "but": 1, "wait": 1}),
    ],
)
def test_a_word_is_all_its_tokens_in_any_case_and_no_part_of_another_word(tmp_path, tokenizer, text, words, counts):
    tokenizer.save_pretrained(tmp_path)
    sample = said(tokenizer, text)
    found = RareWords(tmp_path, WORDS).find(sample)
    pieces = tokenizer.convert_ids_to_tokens(sample.token_ids[sample.loss_mask])
    assert "".join(p for p, rare in zip(pieces, found.at_N, strict=True) if rare) == "".join(words)
    assert dict(found.said) == counts


def test_what_was_rendered_is_not_looked_at_and_no_words_need_no_tokenizer(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    found = RareWords(tmp_path, WORDS).find(said(tokenizer, "it", rendered="wa"))
    assert not found.at_N.any()
    assert not found.said
    assert not RareWords(tmp_path / "nothing", ()).find(said(tokenizer, "wait")).at_N.any()


def test_a_step_reports_their_share_of_the_gradient_and_that_a_word_was_never_said(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
):
    folder = tmp_path / "policy"
    shutil.copytree(tiny_llama, folder)
    pieces = {" " if i == 7 else "Ġwait" if i == 5 else f"ver{i}" if i > 9 else f"#{i}": i for i in range(96)}
    write_tokenizer(pieces, folder)
    samples = [dataclasses.replace(s, token_ids=np.where(s.token_ids % 2, 7, s.token_ids)) for s in make_samples(4)]
    samples[1].token_ids[-3] = 5
    config = TrainConfig(rare_words=("wait", "but"), passes_per_batch=2)
    report = Trainer(folder, config).train_step(samples)
    assert report.rare_word_counts == {"wait": 1, "but": 0}
    assert 0 < report.rare_token_gradient_share < 0.2
    assert Trainer(folder, TrainConfig()).train_step(samples).rare_token_gradient_share == 0


def write_tokenizer(vocabulary: dict[str, int], folder: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel(vocabulary, unk_token=" ")).save(str(folder / "tokenizer.json"))
