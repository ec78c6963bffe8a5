"""From a request's bytes to its answer's bytes: joins, replays, streams, and notices a client that leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from environments.polar.calls import CallRunner, LiveCall
from environments.polar.errors import BadBody, EngineFailed, PolarError
from environments.polar.request import ModelRequest
from environments.polar.session import Asked, Session
from environments.polar.wires.base import WireFormat

KEEP_ALIVE = b": keep-alive\n\n"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def error_response(wire: WireFormat, error: PolarError) -> JSONResponse:
    """An error in the wire's shape. `x-should-retry` keeps SDKs from repeating what cannot succeed."""
    retry = error.status in (429, 503)
    headers = {"x-should-retry": "true" if retry else "false"}
    if retry:
        headers["retry-after"] = "1"
    return JSONResponse(wire.error(error), status_code=error.status, headers=headers)


async def read_body(request: Request, max_bytes: int) -> Mapping[str, Any]:
    """The body as a JSON object. Raises BadBody when it is too large, no JSON or no object."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise BadBody(f"the body has more than {max_bytes} bytes; shorten the conversation")
        parts.append(part)
    try:
        text = b"".join(parts).decode()
        body = _decode(text)
        if "\\ud" in text.lower():  # an escape may be half of a surrogate pair, which no tokenizer can read
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadBody(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadBody(f"the body is a JSON {type(body).__name__}; want an object")
    return body


@contextmanager
def bounded_depth() -> Iterator[None]:
    """While a body is read by meaning: raises BadBody for one that JSON could nest and this interpreter cannot."""
    try:
        yield
    except RecursionError as error:
        raise BadBody("the body is nested too deeply") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers requests of one recorder."""

    runner: CallRunner
    start: Callable[[Session, Asked], LiveCall]
    keep_alive_s: float
    max_body_bytes: int

    def _call(self, session: Session, request: ModelRequest) -> LiveCall:
        asked = session.read(request)
        return session.earlier_answer(asked) or self.start(session, asked)

    async def __call__(self, wire: WireFormat, session: Session, request: Request, send: Send) -> None:
        """Answer one model request. What nobody foresaw is told in the wire's shape too, and then raised."""
        try:
            body = await read_body(request, self.max_body_bytes)
            with bounded_depth():
                model_request = wire.parse(body, request.headers)
                call = self._call(session, model_request)
        except PolarError as error:
            await error_response(wire, error)(request.scope, request.receive, send)
            return
        except Exception as error:
            session.refused = f"the recorder failed: {type(error).__name__}: {error}"
            await error_response(wire, PolarError(session.refused))(request.scope, request.receive, send)
            raise
        await _Delivery(self, wire, model_request, call).run(request.scope, request.receive, send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Delivery:
    """One client listening to one call."""

    def __init__(self, answering: Answering, wire: WireFormat, request: ModelRequest, call: LiveCall) -> None:
        self._answering = answering
        self._wire = wire
        self._request = request
        self._call = call
        self._seen = 0
        self._tokens = 0
        self._last_seen = call.changed

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Deliver until the end, or until the client leaves; the last one to leave aborts the call."""
        call = self._call
        call.listeners += 1
        gone = asyncio.create_task(_until_gone(receive))
        try:
            if self._request.stream:
                call.streamed = True
                await self._stream(gone, scope, receive, send)
            else:
                await self._whole(gone, scope, receive, send)
        finally:
            gone.cancel()
            call.listeners -= 1
            call.delivered_to(self._tokens, whole=False)
            if not call.listeners:
                self._last_one_left()

    def _last_one_left(self) -> None:
        call = self._call
        if call.running:
            call.abort()
        elif call.fully_delivered or call.state != "complete":
            call.forget()

    async def _whole(self, gone: asyncio.Task[None], scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        while call.running and not gone.done():
            await self._wait(gone, None)
        if call.running:
            return
        if call.answer is None or call.state != "complete":
            await error_response(self._wire, self._error())(scope, receive, send)
            return
        body = self._wire.answer(self._request, call, call.answer)
        await JSONResponse(body)(scope, receive, send)
        if not gone.done():  # a server takes what is sent to nobody in silence
            self._done()

    def _error(self) -> PolarError:
        return self._call.error or EngineFailed("the call did not finish")

    def _done(self) -> None:
        self._tokens = len(self._call.ids)
        self._call.delivered_to(self._tokens, whole=True)

    async def _wait(self, gone: asyncio.Task[None], timeout_s: float | None) -> bool:
        """Wait for news of the call; False when the time is up first."""
        if self._last_seen is self._call.changed:
            news = {self._last_seen, gone}
            done, _ = await asyncio.wait(news, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return False
        self._last_seen = self._call.changed
        return True

    async def _stream(self, gone: asyncio.Task[None], scope: Scope, receive: Receive, send: Send) -> None:
        call, view = self._call, self._answering.runner.view(self._call)
        if call.answer is not None and not call.running:
            call.answer = view.finish(call.answer, len(call.ids))
        while call.running and not call.ids and not gone.done():
            if not await self._wait(gone, self._answering.keep_alive_s):
                break
        if call.state in ("broken", "cancelled"):
            await error_response(self._wire, self._error())(scope, receive, send)
            return
        await self._events(gone, send)

    async def _events(self, gone: asyncio.Task[None], send: Send) -> None:
        call, view = self._call, self._answering.runner.view(self._call)
        writer = self._wire.stream(self._request, call)
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, writer.begin())
        while True:
            running = call.running
            pieces = view.pieces[self._seen :]
            self._seen += len(pieces)
            if pieces:
                await _send(send, writer.pieces(pieces))
            if gone.done():
                return
            if pieces:
                self._tokens = pieces[-1].tokens
            if not running:
                break
            if not pieces and not await self._wait(gone, self._answering.keep_alive_s):
                await _send(send, KEEP_ALIVE)
        await self._last(gone, writer, send)

    async def _last(self, gone: asyncio.Task[None], writer: Any, send: Send) -> None:
        call = self._call
        ok = call.state == "complete" and call.answer is not None
        await _send(send, writer.end(call.answer) if ok else writer.failed(self._error()))
        arrived = ok and not gone.done()
        if arrived:  # on record before the client can act on it, and perhaps close the rollout
            self._tokens = len(call.ids)
            call.delivered_to(self._tokens, whole=False)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if arrived:
            self._done()


async def _send(send: Send, data: bytes) -> None:
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})
