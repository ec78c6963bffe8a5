"""Rare words: which trained tokens spell 'wait', 'but' or 'verify', whatever tokens a tokenizer makes of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.samples import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """`at_N`: which of a sample's N trained tokens belong to a word. `said`: how often each word was said."""

    at_N: npt.NDArray[np.bool_]
    said: Counter[str]


class RareWords:
    """Finds whole words, in any case, in what a policy said. The tokenizer is read once there is a word to look for.

    A word is found in the text of the tokens, so it may be one token with a space before it, or several: then all of
    them belong to it. Raises what the tokenizer raises for a folder without `tokenizer.json`.
    """

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        self.words = words
        self._pieces: list[str] = []
        if words:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            # Raw pieces spell a space or a line end as a letter that is not ASCII, so words still end where they end.
            self._pieces = [tokenizer.id_to_token(i) or "\n" for i in range(tokenizer.get_vocab_size())]
        named = "|".join(map(re.escape, words))
        self._pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{named})(?![A-Za-z0-9_])", re.IGNORECASE | re.ASCII)

    def find(self, sample: Sample) -> Found:
        """Where the words are in one sample."""
        said: Counter[str] = Counter()
        if not self.words:
            return Found(at_N=np.zeros(sample.num_loss_tokens, dtype=np.bool_), said=said)
        texts = [self._said(token, trained) for token, trained in zip(sample.token_ids, sample.loss_mask, strict=True)]
        ends = np.cumsum([len(text) for text in texts])
        found_L = np.zeros(len(texts), dtype=np.bool_)
        for match in self._pattern.finditer("".join(texts)):
            first, last = np.searchsorted(ends, (match.start(), match.end() - 1), side="right")
            found_L[first : last + 1] = True
            said[match[0].lower()] += 1
        return Found(at_N=found_L[sample.loss_mask], said=said)

    def _said(self, token: int, trained: bool) -> str:
        """A token's text; a line end for one that was not sampled, or that has no text: no word goes across."""
        return self._pieces[token] if trained and token < len(self._pieces) else "\n"
