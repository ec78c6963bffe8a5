"""The `local` engine: a transformers model in this process, many sessions at once, one worker thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from infra.engines.base import Completion, EngineError, GenerateRequest, Sampling, TokenDelta
from infra.engines.drain import DrainGate
from infra.engines.model import PackedModel
from infra.engines.packed import KVCache
from infra.engines.scheduler import Call, Scheduler


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


@dataclass(eq=False)
class _Listener:
    """Where the deltas of one call go. A call that is not streamed is told once, at its end."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[TokenDelta | EngineError]
    streamed: bool


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
        self._wake = threading.Condition()
        self._inbox: list[tuple[Call, _Listener]] = []
        self._chores: list[tuple[Callable[[], None], Future[None]]] = []
        self._listeners: dict[Call, _Listener] = {}
        self._closing = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-engine")
        model = self._executor.submit(self._load, model_folder).result()
        self._max_context = max_context or model.max_positions
        if self._max_context > model.max_positions:
            raise ValueError(
                f"max_context is {max_context}; {model_folder} was made for {model.max_positions} positions"
            )
        self._vocab_size = model.vocab_size
        cache = KVCache(self._settings.num_slots, self._max_context)
        self._scheduler = Scheduler(model, cache, chunk_tokens=self._settings.chunk_tokens)
        self._worker = self._executor.submit(self._work)
        self._worker.add_done_callback(self._worker_ended)

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
        return await self._collect(self._answer(request, None, streamed=False))

    def stream_forced(self, request: GenerateRequest, ids: Sequence[int]) -> AsyncIterator[TokenDelta]:
        """Answer `ids` (at least one) instead of sampling, with the log-probabilities the policy gives them.

        They are bitwise those that sampling the same ids would have given. Raises ValueError when `request`
        truncates the distribution: a forced token may have probability 0 there.
        """
        return self._answer(request, self._check_forced(request, ids), streamed=True)

    async def generate_forced(self, request: GenerateRequest, ids: Sequence[int]) -> Completion:
        """The whole of `stream_forced`."""
        return await self._collect(self._answer(request, self._check_forced(request, ids), streamed=False))

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
        await self._chore(lambda: self._scheduler.table.close_session(session_id))

    async def load_weights(self, folder: Path, version: int) -> None:
        """Wait for running calls, swap the weights, drop all caches; new calls wait meanwhile."""
        if version <= self._version:
            raise ValueError(f"weights version {version} is not above the present one, {self._version}")
        async with self._gate.closed():
            await self._chore(lambda: self._swap(folder, version))

    async def aclose(self) -> None:
        """Stop; running calls end with finish_reason `abort`. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._executor.shutdown)

    async def _answer(
        self, request: GenerateRequest, forced: tuple[int, ...] | None, *, streamed: bool
    ) -> AsyncIterator[TokenDelta]:
        room = self._room(request)
        async with self._gate.entered():
            limit = min(request.sampling.max_tokens, room)
            call = Call(request, forced, limit, policy_version=self._version)
            listener = _Listener(asyncio.get_running_loop(), asyncio.Queue(), streamed)
            self._submit(call, listener)
            try:
                while True:
                    item = await listener.queue.get()
                    if isinstance(item, EngineError):
                        raise item
                    yield item
                    if item.finish_reason is not None:
                        return
            finally:
                call.aborted = True  # read at the next step; of no effect once the call has ended

    def _room(self, request: GenerateRequest) -> int:
        """How many tokens may follow the prompt. Raises ValueError where there is none, or the ids are wrong."""
        ids = request.prompt_ids
        if not 1 <= len(ids) < self._max_context:
            raise ValueError(
                f"request {request.request_id}: the prompt has {len(ids)} tokens; want 1 to {self._max_context - 1}, "
                f"so that one more fits into the context of {self._max_context}"
            )
        self._check_vocabulary(request.request_id, ids)
        return self._max_context - len(ids)

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

    async def _collect(self, deltas: AsyncIterator[TokenDelta]) -> Completion:
        ids: tuple[int, ...] = ()
        logprobs: tuple[float, ...] = ()
        async for delta in deltas:
            ids, logprobs = ids + delta.ids, logprobs + delta.logprobs
        if delta.finish_reason is None:
            raise EngineError("the stream ended without a finish reason")
        return Completion(
            ids=ids, logprobs=logprobs, finish_reason=delta.finish_reason, policy_version=delta.policy_version
        )

    def _submit(self, call: Call, listener: _Listener) -> None:
        with self._wake:
            if self._closing or self._worker.done():
                raise EngineError(f"the local engine {self._why_stopped()}; start another")
            self._inbox.append((call, listener))
            self._wake.notify()

    async def _chore(self, work: Callable[[], None]) -> None:
        """Run `work` in the worker thread, between two steps."""
        future: Future[None] = Future()
        with self._wake:
            if self._closing or self._worker.done():
                raise EngineError(f"the local engine {self._why_stopped()}; start another")
            self._chores.append((work, future))
            self._wake.notify()
        await asyncio.wrap_future(future)

    def _why_stopped(self) -> str:
        error = self._worker.exception() if self._worker.done() else None
        return f"failed: {error!r}" if error else "was closed"

    # Everything below runs in the worker thread.

    def _load(self, folder: Path) -> PackedModel:
        torch.set_num_threads(self._settings.num_threads)
        max_rows = self._settings.num_slots + self._settings.chunk_tokens
        return PackedModel(folder, max_rows=max_rows)

    def _swap(self, folder: Path, version: int) -> None:
        model = self._load(folder)
        if model.shapes != self._scheduler.model.shapes:
            raise EngineError(f"weights in {folder} have other shapes than those of {self._folder}; start a new engine")
        self._scheduler.swap_model(model)
        self._version = version

    def _work(self) -> None:
        with torch.inference_mode():
            while self._take_work():
                self._publish(self._scheduler.step())
        for call in self._scheduler.calls():
            call.finish_reason = "abort"
        self._publish(self._scheduler.calls())

    def _take_work(self) -> bool:
        """Wait for something to do, take it in; False when the engine is to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._chores or self._closing or not self._scheduler.idle)
            inbox, self._inbox = self._inbox, []
            chores, self._chores = self._chores, []
        for call, listener in inbox:
            self._listeners[call] = listener
            self._scheduler.add(call)
        self._publish(self._scheduler.drop_aborted())
        for work, future in chores:
            _run_chore(work, future)
        return not self._closing

    def _publish(self, calls: Sequence[Call]) -> None:
        """Hand new tokens to the event loops of their callers, one hand-over a loop."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[_Listener, TokenDelta]]] = {}
        for call in calls:
            listener = self._listeners[call]
            if call.finish_reason is not None:
                del self._listeners[call]
            elif not listener.streamed:
                continue
            batches.setdefault(listener.loop, []).append((listener, call.take_delta()))
        for loop, batch in batches.items():
            _hand_over(loop, batch)

    def _worker_ended(self, worker: Future[None]) -> None:
        error = worker.exception()
        if error is None:
            return
        with self._wake:
            for call, listener in self._inbox:
                self._listeners[call] = listener
            chores = self._chores
        failure = EngineError(f"the local engine failed: {error!r}")
        failure.__cause__ = error
        for listener in self._listeners.values():
            _hand_over(listener.loop, [(listener, failure)])
        for _, future in chores:
            future.set_exception(failure)


def _run_chore(work: Callable[[], None], future: Future[None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        work()
    except EngineError as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _hand_over(loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[_Listener, TokenDelta | EngineError]]) -> None:
    def deliver() -> None:
        for listener, item in batch:
            listener.queue.put_nowait(item)

    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)
