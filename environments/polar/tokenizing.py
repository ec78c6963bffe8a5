"""A Hugging Face tokenizer without its wrapping: the same ids at a fraction of the time per call."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

# Characters of the texts whose ids are remembered: some ten of the longest system prompts, or a group's observations.
REMEMBERED_CHARACTERS = 2_000_000
# One text may take this share of them: a single huge one would drive out all others.
LARGEST_SHARE = 8


class RememberedTexts:
    """Ids by their exact text, as many texts as fit into a number of characters; the one unused longest goes first.

    Rollouts of a group begin alike, and most of what their tools answer has been answered to another before.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], *, characters: int = REMEMBERED_CHARACTERS) -> None:
        self._encode = encode
        self._characters = characters
        self._ids: OrderedDict[str, array[int]] = OrderedDict()  # in order of use
        self._held = 0

    def __call__(self, text: str) -> list[int]:
        """The ids of `text`."""
        ids = self._ids.get(text)
        if ids is not None:
            self._ids.move_to_end(text)
            return list(ids)
        found = list(self._encode(text))
        if len(text) <= self._characters // LARGEST_SHARE:
            self._keep(text, array("i", found))
        return found

    def _keep(self, text: str, ids: array[int]) -> None:
        self._ids[text] = ids
        self._held += len(text)
        while self._held > self._characters:
            oldest, _ = self._ids.popitem(last=False)
            self._held -= len(oldest)


class LeanTokenizer:
    """Encodes and decodes by the Rust backend directly; all else is the wrapped tokenizer's.

    It is not callable on purpose: renderers then leave out per-token attribution, which nothing here reads, and
    give the same ids. Texts that come again are remembered.
    """

    def __init__(self, tokenizer: Any, backend: Any) -> None:
        self._wrapped = tokenizer
        self._backend = backend
        # Truncation and padding may stand in tokenizer.json; the wrapper switches them off at each call.
        backend.no_truncation()
        backend.no_padding()
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self._remembered = RememberedTexts(self._encode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of one token by the backend (renderers look their markers up at every call), of several as wrapped."""
        found = self._backend.token_to_id(tokens) if isinstance(tokens, str) else None
        return self._wrapped.convert_tokens_to_ids(tokens) if found is None else found

    def _encode(self, text: str) -> Sequence[int]:
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)  # fast: without offsets
        ids: list[int] = encoding.ids
        return ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with the template's own special tokens only where the wrapper is asked for them."""
        return list(self._wrapped.encode(text)) if add_special_tokens else self._remembered(text)

    def decode(self, ids: Sequence[int] | int, *, skip_special_tokens: bool = False, **more: Any) -> str:
        """The text of ids."""
        if more or self._wrapped.clean_up_tokenization_spaces:
            return str(self._wrapped.decode(ids, skip_special_tokens=skip_special_tokens, **more))
        sequence = [ids] if isinstance(ids, int) else list(ids)
        return str(self._backend.decode(sequence, skip_special_tokens=skip_special_tokens))


def lean(tokenizer: Any) -> Any:
    """The lean form of a tokenizer with a Rust backend, and any other tokenizer as it is."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return tokenizer if backend is None else LeanTokenizer(tokenizer, backend)
