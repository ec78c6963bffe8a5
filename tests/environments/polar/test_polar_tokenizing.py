"""The lean tokenizer gives the ids of the one it wraps, whatever it remembers and forgets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from environments.polar.tokenizing import RememberedTexts


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(("<|im_end|>", "<tool_call>", "assistant\n", "é ✓", "  ", "word")) | st.text(max_size=60))
)
def test_the_lean_tokenizer_gives_the_ids_and_texts_of_the_one_it_wraps(plain, rendering, pieces):
    text = "".join(pieces)
    ids = plain.encode(text, add_special_tokens=False)
    for _ in range(2):  # the second time it is remembered
        assert rendering._tokenizer.encode(text, add_special_tokens=False) == ids
    assert rendering.text(ids) == plain.decode(ids, skip_special_tokens=False)


def test_the_lean_tokenizer_names_tokens_as_the_one_it_wraps(plain, rendering):
    lean = rendering._tokenizer
    assert lean.unk_token_id == plain.unk_token_id
    for asked in ("<|im_end|>", "<think>", "no such token", ["<think>", "a"]):
        assert lean.convert_tokens_to_ids(asked) == plain.convert_tokens_to_ids(asked)


class Counting:
    """Encodes a text to its characters' numbers, and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return [ord(c) for c in text]


def test_the_text_unused_longest_is_forgotten_first():
    encode = Counting()
    remembered = RememberedTexts(encode, characters=24)
    for text in ("aaa", "bb", "aaa", "ccc", "aaa", "bb"):
        assert remembered(text) == [ord(c) for c in text]
    assert encode.asked == ["aaa", "bb", "ccc"]
    for text in ("ddd", "eee", "fff", "ggg", "hhh", "iii"):  # 18 more, and "bb" and "aaa" were used last: 23
        remembered(text)
    encode.asked.clear()
    for text in ("aaa", "bb", "ccc"):
        remembered(text)
    assert encode.asked == ["ccc"]


def test_one_huge_text_drives_no_other_out():
    encode = Counting()
    remembered = RememberedTexts(encode, characters=80)
    remembered("small")
    for _ in range(2):
        assert remembered("x" * 11) == [120] * 11
    remembered("small")
    assert encode.asked == ["small", "x" * 11, "x" * 11]


def test_what_a_caller_does_to_its_ids_is_not_remembered():
    remembered = RememberedTexts(Counting(), characters=80)
    for _ in range(3):
        ids = remembered("ab")
        assert ids == [97, 98]
        ids.append(99)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text("ab", max_size=6), max_size=60))
def test_ids_are_those_of_the_text_whatever_was_asked_before_and_few_are_held(texts):
    remembered = RememberedTexts(lambda text: [ord(c) for c in text], characters=40)
    for text in texts:
        assert remembered(text) == [ord(c) for c in text]
        assert sum(map(len, remembered._ids)) == remembered._held <= 40
