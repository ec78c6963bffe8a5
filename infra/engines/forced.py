"""The `forced` engine: answers given texts, with the log-probabilities that the policy really gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from transformers import AutoTokenizer

from infra.engines.base import Completion, EngineError, GenerateRequest, TokenDelta
from infra.engines.local import LocalEngine

Script = Callable[[GenerateRequest], str | None]


def _forced_text(request: GenerateRequest) -> str | None:
    return request.forced_text


class ForcedEngine:
    """Scripted answers over a `LocalEngine`, whose model, cache and weight swaps it uses. See `Engine`.

    `script` says the text of each answer (default: `request.forced_text`); the ids are the tokenizer's for that
    text, then its end-of-sequence token. Raises EngineError for a request that the script has no text for.
    Special tokens in the text become their ids.
    """

    def __init__(self, local: LocalEngine, script: Script = _forced_text) -> None:
        self._local = local
        self._script = script
        self._tokenizer = AutoTokenizer.from_pretrained(local.model_folder, local_files_only=True)
        if self._tokenizer.eos_token_id is None:
            raise EngineError(f"the tokenizer of {local.model_folder} has no eos token; a forced answer could not end")

    @property
    def model_folder(self) -> Path:
        """The folder whose weights score the answers."""
        return self._local.model_folder

    @property
    def policy_version(self) -> int:
        """The version of the weights that score the next answer."""
        return self._local.policy_version

    @property
    def max_context(self) -> int:
        """The most tokens (prompt + completion) that a call may have."""
        return self._local.max_context

    def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        """The scripted tokens as they are scored; cut at the limits with finish_reason `length`."""
        return self._local.stream_forced(request, self._ids(request))

    async def generate(self, request: GenerateRequest) -> Completion:
        """The whole scripted completion."""
        return await self._local.generate_forced(request, self._ids(request))

    def _ids(self, request: GenerateRequest) -> list[int]:
        text = self._script(request)
        if text is None:
            raise EngineError(
                f"request {request.request_id} (call {request.call_index} of {request.rollout_id}) has no forced text; "
                "set forced_text or give the engine a script that answers it"
            )
        return [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """Log-probabilities at temperature 1; see the protocol."""
        return await self._local.score(ids)

    async def close_session(self, session_id: str) -> None:
        """Forget the session's cache."""
        await self._local.close_session(session_id)

    async def load_weights(self, folder: Path, version: int) -> None:
        """Wait for running calls and swap the weights."""
        await self._local.load_weights(folder, version)

    async def aclose(self) -> None:
        """Stop the engine below too."""
        await self._local.aclose()
