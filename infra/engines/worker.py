"""The thread that runs the model: calls and chores go in, tokens come out on the event loops of their callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import torch

from infra.engines.base import EngineError, TokenDelta
from infra.engines.scheduler import Call, Scheduler

Chore = Callable[[], None]


@dataclass(eq=False)
class _Listener:
    """Where the deltas of one call go. A call that is not streamed is told once, at its end."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[TokenDelta | EngineError]
    streamed: bool


class EngineWorker:
    """Owns a scheduler and the one thread that touches it.

    `make_scheduler` runs in that thread. Raises what it raises, if that is EngineError or ValueError. A failed step
    fails every call under way and every later one with EngineError.
    """

    def __init__(self, make_scheduler: Callable[[], Scheduler], *, num_threads: int) -> None:
        self._num_threads = num_threads
        self._wake = threading.Condition()
        self._inbox: list[tuple[Call, _Listener]] = []
        self._chores: list[tuple[Chore, Future[None]]] = []
        self._listeners: dict[Call, _Listener] = {}
        self._closing = False
        self._stopped: str | None = None
        self.scheduler: Scheduler | None = None
        # a daemon: a program that ends without closing its engine must not wait for it forever
        self._thread = threading.Thread(target=self._run, name="local-engine", daemon=True)
        self._thread.start()
        self._start(make_scheduler)

    def _start(self, make_scheduler: Callable[[], Scheduler]) -> None:
        def make() -> None:
            self.scheduler = make_scheduler()

        try:
            self._enqueue_chore(make).result()
        except (EngineError, ValueError):
            self.close()
            raise

    async def deltas(self, call: Call, *, streamed: bool) -> AsyncGenerator[TokenDelta, None]:
        """Run `call`: its tokens as they come, or all in one delta. Closing the iterator aborts the call."""
        listener = _Listener(asyncio.get_running_loop(), asyncio.Queue(), streamed)
        with self._wake:
            self._refuse_if_stopped()
            self._inbox.append((call, listener))
            self._wake.notify()
        try:
            while True:
                item = await listener.queue.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            call.aborted = True  # read before the next step; of no effect once the call has ended

    async def do(self, chore: Chore) -> None:
        """Run `chore` in the thread, between two steps; raises its EngineError."""
        await asyncio.wrap_future(self._enqueue_chore(chore))

    def close(self) -> None:
        """End running calls with `abort` and the thread with them; returns when it has ended."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _enqueue_chore(self, chore: Chore) -> Future[None]:
        future: Future[None] = Future()
        with self._wake:
            self._refuse_if_stopped()
            self._chores.append((chore, future))
            self._wake.notify()
        return future

    def _refuse_if_stopped(self) -> None:
        reason = self._stopped or ("was closed" if self._closing else None)
        if reason is not None:
            raise EngineError(f"the local engine {reason}; start another")

    # Everything below runs in the thread.

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        with ExitStack() as stack:
            stack.push(self._ended)
            stack.enter_context(torch.inference_mode())
            while self._take_work():
                if self.scheduler is not None:
                    self._publish(self.scheduler.step())

    def _take_work(self) -> bool:
        """Wait for something to do and take it in; False when the thread is to end."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            inbox, self._inbox = self._inbox, []
            chores, self._chores = self._chores, []
            closing = self._closing
        for chore, future in chores:
            self._abort_what_was_left()
            _run_chore(chore, future)
        for call, listener in inbox:
            self._listeners[call] = listener
            if self.scheduler is not None:
                self.scheduler.add(call)
        self._abort_what_was_left()
        return not closing

    def _has_work(self) -> bool:
        busy = self.scheduler is not None and not self.scheduler.idle
        return bool(self._inbox or self._chores or self._closing or busy)

    def _abort_what_was_left(self) -> None:
        """Calls whose listener has gone hold nothing any more, before weights are swapped or a step is made."""
        if self.scheduler is not None:
            self._publish(self.scheduler.drop_aborted())

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

    def _ended(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Tell every caller how the thread ended; the error is theirs now, so it goes no further here."""
        with self._wake:
            self._stopped = "was closed" if error is None else f"failed: {error!r}"
            self._listeners.update(self._inbox)
            chores = self._chores
        for call, listener in self._listeners.items():
            call.finish_reason = "abort"
            _hand_over(listener.loop, [(listener, call.take_delta() if error is None else self._failure(error))])
        for _, future in chores:
            future.set_exception(self._failure(error))
        if self.scheduler is not None:
            self.scheduler.model.close()
        return True

    def _failure(self, error: BaseException | None) -> EngineError:
        failure = EngineError(f"the local engine {self._stopped}; start another")
        failure.__cause__ = error
        return failure


def _run_chore(chore: Chore, future: Future[None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        chore()
    except (EngineError, ValueError) as error:
        future.set_exception(error)
    else:
        future.set_result(None)


def _hand_over(loop: asyncio.AbstractEventLoop, batch: Sequence[tuple[_Listener, TokenDelta | EngineError]]) -> None:
    def deliver() -> None:
        for listener, item in batch:
            listener.queue.put_nowait(item)

    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver)
