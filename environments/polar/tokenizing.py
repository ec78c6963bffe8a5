"""A Hugging Face tokenizer without its wrapping: the same ids at a fraction of the time per call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Template pieces ("assistant\n") are encoded again and again; longer texts are not worth keeping.
CACHED_CHARACTERS = 48
CACHED_TEXTS = 4096


class LeanTokenizer:
    """Encodes and decodes by the Rust backend directly; all else is the wrapped tokenizer's.

    It is not callable on purpose: renderers then leave out per-token attribution, which nothing here reads, and
    give the same ids. Template pieces are remembered.
    """

    def __init__(self, tokenizer: Any, backend: Any) -> None:
        self._wrapped = tokenizer
        self._backend = backend
        # Truncation and padding may stand in tokenizer.json; the wrapper switches them off at each call.
        backend.no_truncation()
        backend.no_padding()
        self.unk_token_id: int | None = tokenizer.unk_token_id
        self._short = lru_cache(maxsize=CACHED_TEXTS)(self._encode)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of one token by the backend (renderers look their markers up at every call), of several as wrapped."""
        found = self._backend.token_to_id(tokens) if isinstance(tokens, str) else None
        return self._wrapped.convert_tokens_to_ids(tokens) if found is None else found

    def _encode(self, text: str) -> tuple[int, ...]:
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)  # fast: without offsets
        return tuple(encoding.ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; with the template's own special tokens only where the wrapper is asked for them."""
        if add_special_tokens:
            return list(self._wrapped.encode(text))
        return list(self._short(text) if len(text) <= CACHED_CHARACTERS else self._encode(text))

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
