"""The `local` engine: a transformers model in this process, many sessions at once, one worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from infra.engines.base import Completion, EngineError, GenerateRequest, Sampling, TokenDelta
from infra.engines.calls import check_version, completion_room, gathered
from infra.engines.drain import DrainGate
from infra.engines.model import PackedModel
from infra.engines.packed import KVCache
from infra.engines.scheduler import Call, Scheduler
from infra.engines.worker import EngineWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """How much the engine may use. None of it changes a token or a log-probability.

    `num_slots`: sessions whose cache is held, and calls that can run at once; `chunk_tokens`: prompt tokens read in
    a step beside one token of every decoding call; `num_threads`: intra-op threads of the worker.
    """

    num_slots: int = 64
    chunk_tokens: int = 256
    num_threads: int = 1

    def __post_init__(self) -> None:
        for name in ("num_slots", "chunk_tokens", "num_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"local engine: {name} is {getattr(self, name)}; want at least 1")


class LocalEngine:
    """Serves one Hugging Face folder. Loading blocks; all else is async. See `infra.engines.base.Engine`.

    A call whose prompt leaves less room than `max_tokens` in `max_context` is cut there and ends with `length`.
    """

    def __init__(
        self,
        model_folder: Path,
        *,
        policy_version: int = 0,
        max_context: int | None = None,
        settings: LocalSettings | None = None,
    ) -> None:
        self._settings = settings or LocalSettings()
        self._folder = model_folder
        self._version = policy_version
        self._gate = DrainGate()
        self._worker = EngineWorker(lambda: self._make_scheduler(max_context), num_threads=self._settings.num_threads)

    def _make_scheduler(self, max_context: int | None) -> Scheduler:
        model = self._load(self._folder)
        self._vocab_size = model.vocab_size
        self._max_context = max_context or model.max_positions
        if self._max_context > model.max_positions:
            raise ValueError(
                f"max_context is {max_context}; {self._folder} was made for {model.max_positions} positions"
            )
        cache = KVCache(self._settings.num_slots, self._max_context)
        return Scheduler(model, cache, chunk_tokens=self._settings.chunk_tokens)

    def _load(self, folder: Path) -> PackedModel:
        settings = self._settings
        max_rows = settings.num_slots + settings.chunk_tokens
        return PackedModel(folder, max_rows=max_rows, num_threads=settings.num_threads)

    @property
    def model_folder(self) -> Path:
        """The folder whose weights are served."""
        return self._folder

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next token will be drawn from."""
        return self._version

    @property
    def max_context(self) -> int:
        """The most tokens (prompt + completion) that a call may have."""
        return self._max_context

    def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        """Tokens as they are drawn; see the protocol."""
        return self._answer(request, None, streamed=True)

    async def generate(self, request: GenerateRequest) -> Completion:
        """The whole completion; see the protocol."""
        return await gathered(self._answer(request, None, streamed=False))

    def stream_forced(self, request: GenerateRequest, ids: Sequence[int]) -> AsyncIterator[TokenDelta]:
        """Answer `ids` (at least one) instead of sampling, with the log-probabilities the policy gives them.

        They are bitwise those that sampling the same ids would have given. Raises ValueError when `request`
        truncates the distribution: a forced token may have probability 0 there.
        """
        return self._answer(request, self._check_forced(request, ids), streamed=True)

    async def generate_forced(self, request: GenerateRequest, ids: Sequence[int]) -> Completion:
        """The whole of `stream_forced`."""
        return await gathered(self._answer(request, self._check_forced(request, ids), streamed=False))

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """`logprobs[L-1]` at temperature 1; see the protocol. Needs at least 2 ids (ValueError)."""
        if len(ids) < 2:
            raise ValueError(f"score needs at least 2 ids, a context and a token; got {len(ids)}")
        name = "\x00score"
        request = GenerateRequest(
            request_id=name,
            session_id=name,
            rollout_id=name,
            call_index=0,
            prompt_ids=tuple(ids[:1]),
            sampling=Sampling(max_tokens=len(ids) - 1),
        )
        return (await self.generate_forced(request, ids[1:])).logprobs

    async def close_session(self, session_id: str) -> None:
        """Give the session's slot to whoever needs one next."""
        await self._worker.do(lambda: self._scheduler.table.close_session(session_id))

    async def load_weights(self, folder: Path, version: int) -> None:
        """Wait for running calls, swap the weights, drop all caches; new calls wait meanwhile."""
        check_version(self._version, version)
        async with self._gate.closed():
            await self._worker.do(lambda: self._swap(folder, version))

    def _swap(self, folder: Path, version: int) -> None:
        model = self._load(folder)
        if model.shapes != self._scheduler.model.shapes:
            raise EngineError(f"weights in {folder} have other shapes than those of {self._folder}; start a new engine")
        self._scheduler.swap_model(model)
        self._version = version

    @property
    def _scheduler(self) -> Scheduler:
        if self._worker.scheduler is None:
            raise EngineError("the local engine has not loaded its model")
        return self._worker.scheduler

    async def aclose(self) -> None:
        """Stop; running calls end with finish_reason `abort`. Idempotent."""
        await asyncio.to_thread(self._worker.close)

    async def _answer(
        self, request: GenerateRequest, forced: tuple[int, ...] | None, *, streamed: bool
    ) -> AsyncIterator[TokenDelta]:
        limit = completion_room(request, self._max_context)
        self._check_vocabulary(request.request_id, request.prompt_ids)
        async with self._gate.entered():
            call = Call(request, forced, limit, policy_version=self._version)
            async with aclosing(self._worker.deltas(call, streamed=streamed)) as deltas:
                async for delta in deltas:
                    yield delta

    def _check_forced(self, request: GenerateRequest, ids: Sequence[int]) -> tuple[int, ...]:
        if request.sampling.top_p < 1 or request.sampling.top_k > 0:
            raise ValueError("forced tokens are scored under the whole distribution; want top_p 1 and top_k -1")
        if not ids:
            raise ValueError(f"request {request.request_id}: no forced tokens; want at least one")
        self._check_vocabulary(request.request_id, ids)
        return tuple(ids)

    def _check_vocabulary(self, request_id: str, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            wrong = next(i for i in ids if not 0 <= i < self._vocab_size)
            raise ValueError(
                f"request {request_id}: id {wrong} is outside the vocabulary of {self._vocab_size}; "
                f"encode with the tokenizer of {self._folder}"
            )
