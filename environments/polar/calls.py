"""One call to the engine: runs apart from whoever listens, so that it can be joined, replayed or aborted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from environments.polar.errors import BudgetExhausted, EngineFailed, LogFailed, PolarError
from environments.polar.gate import Gate
from environments.polar.lineage import Place
from environments.polar.log import RolloutLog
from environments.polar.rendering import Answer, Rendering, Tools
from environments.polar.stream_view import StreamView, cut_at_stop
from environments.types import CallState, Wire
from infra.engines.base import Engine, EngineError, FinishReason, GenerateRequest, Sampling, TokenDelta

CUT_AT_DEADLINE = "budget_exhausted: the time that this rollout may take was over while the call ran"


def _news() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, kw_only=True, eq=False)
class LiveCall:
    """A call while it runs, and what is needed to replay it until it has been delivered.

    `tag` is its short name within the rollout, fit for the ids that harnesses are shown.
    """

    call_id: str
    tag: str
    rollout_id: str
    session_id: str
    wire: Wire
    place: Place
    ordinal: int
    call_index: int
    prompt_ids: list[int]
    sampling: Sampling
    stops: tuple[str, ...]
    tools: Tools
    started_at: float
    time_left_s: float
    streamed: bool
    log: RolloutLog
    prompt_length: int
    tail_length: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    logged: int = 0
    policy_version: int = -1
    state: CallState | None = None
    finish_reason: FinishReason = "abort"
    stop_hit: str | None = None
    answer: Answer | None = None
    error: PolarError | None = None
    view: StreamView | None = None
    delivered: int = 0
    fully_delivered: bool = False
    listeners: int = 0
    begun: bool = False
    aborted: bool = False
    ending: bool = False
    task: asyncio.Task[None] | None = None
    changed: asyncio.Future[None] = field(default_factory=_news)

    @property
    def running(self) -> bool:
        """Whether tokens may still come."""
        return self.state is None

    @property
    def failed(self) -> bool:
        """Whether no answer will come of it: it broke, was cancelled, or is about to be."""
        return self.aborted or self.state in ("cancelled", "broken")

    def notify(self) -> None:
        """Wake all who wait for `changed` (by `asyncio.wait`, which leaves it whole when one of them is cancelled)."""
        self.changed.set_result(None)
        self.changed = _news()

    def forget(self) -> None:
        """Drop what only a replay could need. Called when no listener is left and none can want it again."""
        self.prompt_ids, self.ids, self.logprobs = [], [], []
        self.view, self.answer = None, None

    def abort(self) -> None:
        """Stop the generation, unless its end is already on its way to the disk."""
        if self.ending:
            return
        self.aborted = True
        if self.task is not None and self.begun:
            self.task.cancel()

    def delivered_to(self, tokens: int, *, whole: bool) -> None:
        """Note that a client has been sent the first `tokens` tokens (`whole`: and the end of the answer)."""
        self.fully_delivered = self.fully_delivered or whole
        if tokens > self.delivered:
            self.delivered = tokens
            # The bytes are gone: neither a full disk nor a rollout that was closed meanwhile may break the answer.
            with suppress(LogFailed):
                self.log.append("delivered", {"call": self.call_id, "tokens": tokens})


def check_delta(delta: TokenDelta) -> None:
    """Raise EngineFailed unless each sampled token has a finite log-probability of its own."""
    if len(delta.ids) != len(delta.logprobs):
        raise EngineFailed(f"the engine gave {len(delta.ids)} ids with {len(delta.logprobs)} logprobs")
    bad = next((x for x in delta.logprobs if not math.isfinite(x) or x > 1e-6), None)
    if bad is not None:
        raise EngineFailed(f"the engine gave a logprob of {bad}; want finite and <= 0")


@dataclass(slots=True, kw_only=True)
class CallRunner:
    """Runs calls: engine to log, log to listeners, in that order."""

    engine: Engine
    rendering: Rendering
    clock: Callable[[], float]
    gate: Gate

    async def run(self, call: LiveCall, finished: Callable[[LiveCall], None]) -> None:
        """Drive one call to its end; `finished` is told before the listeners are."""
        call.begun = True
        deadline = asyncio.timeout(None if math.isinf(call.time_left_s) else call.time_left_s)
        try:
            async with deadline, self.gate.place():
                if call.aborted:  # before its first step, when cancelling the task would have skipped all this
                    raise asyncio.CancelledError
                await self._generate(call)
            await self._complete(call)
        except asyncio.CancelledError:
            self._end(call, "cancelled", None)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._end(call, "cancelled", BudgetExhausted(CUT_AT_DEADLINE))
        except (EngineError, PolarError) as error:
            self._end(call, "broken", error)
        except ValueError as error:  # the engine's word for a request that it cannot serve
            self._end(call, "broken", error)
        finally:
            if call.state is None:  # a fault of ours that nobody foresaw: no listener may wait for ever
                call.state, call.error = "broken", EngineFailed("the recorder failed; see its log")
            finished(call)
            call.notify()

    async def _generate(self, call: LiveCall) -> None:
        request = GenerateRequest(
            request_id=call.call_id,
            session_id=call.session_id,
            rollout_id=call.rollout_id,
            call_index=call.call_index,
            prompt_ids=call.prompt_ids,
            sampling=call.sampling,
        )
        if not call.streamed and not call.stops:
            done = await self.engine.generate(request)
            self._take(call, TokenDelta(**{f: getattr(done, f) for f in ("ids", "logprobs", "policy_version")}))
            call.finish_reason = done.finish_reason
            return
        stream = self.engine.stream(request)
        try:
            async for delta in stream:
                self._take(call, delta)
                if delta.finish_reason is not None:
                    call.finish_reason = delta.finish_reason
                if self._stopped(call, len(delta.ids)):
                    call.finish_reason = "stop"
                    break
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _take(self, call: LiveCall, delta: TokenDelta) -> None:
        check_delta(delta)
        if call.policy_version not in (-1, delta.policy_version):
            raise EngineFailed(f"weights changed from {call.policy_version} to {delta.policy_version} in a call")
        call.policy_version = delta.policy_version
        call.ids += delta.ids
        call.logprobs += delta.logprobs
        if call.streamed and not call.stops:
            self._log_delta(call)
            self.view(call).grow(len(call.ids))
            call.notify()

    def _log_delta(self, call: LiveCall) -> None:
        new = slice(call.logged, len(call.ids))
        head = {"call": call.call_id, "version": call.policy_version}
        call.log.append("delta", head, ids=[call.ids[new]], logprobs=[call.logprobs[new]])
        call.logged = len(call.ids)

    def _stopped(self, call: LiveCall, fresh: int) -> bool:
        """Whether a stop string has come; cuts the ids after the token that completes it."""
        if not call.stops:
            return False
        window = fresh + 4 * max(len(s) for s in call.stops)
        start = max(0, len(call.ids) - window)
        for end in range(len(call.ids) - fresh + 1, len(call.ids) + 1):
            text = self.rendering.text(call.ids[start:end])
            call.stop_hit = next((stop for stop in call.stops if stop in text), None)
            if call.stop_hit is not None:
                del call.ids[end:]
                del call.logprobs[end:]
                self._show(call)
                return True
        self._show(call)
        return False

    def _show(self, call: LiveCall) -> None:
        if call.streamed:
            self._log_delta(call)
            self.view(call).grow(len(call.ids))
            call.notify()

    def view(self, call: LiveCall) -> StreamView:
        """The call's picture for streams, made when first asked for."""
        if call.view is None:
            call.view = StreamView(parse=lambda: self._parse(call, unfinished=True), stops=call.stops)
        return call.view

    def _parse(self, call: LiveCall, *, unfinished: bool) -> Answer:
        return self.rendering.parse(call.ids, call.prompt_ids, call.tools, call.tag, unfinished=unfinished)

    async def _complete(self, call: LiveCall) -> None:
        if call.finish_reason == "abort":
            raise EngineFailed("the engine aborted the call")
        answer = self._parse(call, unfinished=False)
        answer = replace(answer, text=cut_at_stop(answer.text, call.stops))
        call.answer = self.view(call).finish(answer, len(call.ids)) if call.streamed else answer
        call.ending = True
        self._log_end(call, "complete", "")
        if call.streamed:
            call.notify()
        await call.log.writer.commit(alone=self.gate.idle)
        call.state = "complete"

    def _end(self, call: LiveCall, state: CallState, cause: Exception | None) -> None:
        call.error = cause if isinstance(cause, PolarError) else EngineFailed(str(cause) if cause else "aborted")
        call.finish_reason = "abort"
        try:
            self._log_end(call, state, str(cause or ""))
        except LogFailed as error:
            call.error = error
        call.state = state

    def _log_end(self, call: LiveCall, state: CallState, fault: str) -> None:
        new = slice(call.logged, len(call.ids))
        head = {
            "call": call.call_id,
            "state": state,
            "fault": fault,
            "finish": call.finish_reason,
            "version": call.policy_version,
            "tokens": len(call.ids),
            "parse": call.answer.outcome if call.answer is not None else "",
            "at": self.clock(),
            "answer": message_plain(call.answer) if call.answer is not None else None,
        }
        call.log.append("end", head, ids=[call.ids[new]], logprobs=[call.logprobs[new]])
        call.logged = len(call.ids)


def message_plain(answer: Answer) -> dict[str, Any]:
    """An answer as the log keeps it."""
    return {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "calls": [[c.call_id, c.name, c.arguments_text()] for c in answer.tool_calls],
    }


def new_messages_plain(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as the log keeps them."""
    return [
        {
            "role": m.role,
            "text": m.text,
            "reasoning": m.reasoning,
            "tool_call_id": m.tool_call_id,
            "calls": [[c.call_id, c.name, c.arguments_text()] for c in m.tool_calls],
        }
        for m in messages
    ]
