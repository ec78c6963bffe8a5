"""A scripted engine: real ids of the folder's own tokenizer, logprobs that name their token, any fault on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from renderers.base import load_tokenizer

from infra.engines.base import Completion, EngineError, GenerateRequest, TokenDelta

STOP = "<|im_end|>"


def logprob_of(token: int, position: int) -> float:
    """A number that only this token at this place has, so that a misplaced one is seen."""
    return -(1 + token) / 1024 - position / 2**20


def call_text(command: str, thought: str = "") -> str:
    """What the tiny model says to run a command."""
    import json

    think = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    return f'{think}<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>{STOP}'


class ScriptedEngine:
    """Answers `script(request)`: a text (encoded), ids, or an exception to raise. Counts what it is asked."""

    def __init__(
        self,
        folder: Path,
        script: Callable[[GenerateRequest], str | Sequence[int] | Exception],
        *,
        max_context: int = 100_000,
        token_s: float = 0.0,
    ) -> None:
        self.model_folder = folder
        self.policy_version = 0
        self.max_context = max_context
        self.token_s = token_s
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.closed_sessions: list[str] = []
        self._script = script
        self._tokenizer = load_tokenizer(str(folder))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        said = self._script(request)
        if isinstance(said, Exception):
            raise said
        ids = self.encode(said) if isinstance(said, str) else list(said)
        ids, start = ids[: request.sampling.max_tokens], len(request.prompt_ids)
        closed = bool(ids) and ids[-1] in request.sampling.stop_token_ids
        finished = False
        try:
            for i, token in enumerate(ids):
                await asyncio.sleep(self.token_s)
                last = i == len(ids) - 1
                finished = last
                yield TokenDelta(
                    ids=(token,),
                    logprobs=(logprob_of(token, start + i),),
                    policy_version=self.policy_version,
                    finish_reason=("stop" if closed else "length") if last else None,
                )
        finally:
            if not finished:
                self.aborted.append(request.request_id)

    async def generate(self, request: GenerateRequest) -> Completion:
        deltas = [delta async for delta in self.stream(request)]
        reason = deltas[-1].finish_reason if deltas else "stop"
        if reason is None:
            raise EngineError("the script ended without a finish reason")
        return Completion(
            ids=tuple(i for d in deltas for i in d.ids),
            logprobs=tuple(x for d in deltas for x in d.logprobs),
            finish_reason=reason,
            policy_version=self.policy_version,
        )

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        return tuple(logprob_of(token, i) for i, token in enumerate(ids) if i)

    async def close_session(self, session_id: str) -> None:
        self.closed_sessions.append(session_id)

    async def load_weights(self, folder: Path, version: int) -> None:
        self.policy_version = version

    async def aclose(self) -> None:
        return None
