"""The ASGI app: routes, keys, and the probes that harnesses send."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.polar.answering import Answering, error_response
from environments.polar.errors import UnknownKey
from environments.polar.session import Session
from environments.polar.wires.base import WireFormat
from environments.polar.wires.chat import ChatWire

CHAT = ChatWire()
WIRES: Mapping[str, WireFormat] = {"chat/completions": CHAT}


def key_of(headers: Mapping[str, str]) -> str:
    """The capability key, however the SDK sends it."""
    bearer = headers.get("authorization", "")
    if bearer.lower().startswith("bearer "):
        return bearer[7:].strip()
    return headers.get("x-api-key") or headers.get("api-key") or ""


@dataclass(frozen=True, slots=True)
class _ModelCall:
    """One POST endpoint of one wire format, as an ASGI app."""

    wire: WireFormat
    find: Callable[[str], Session | None]
    answering: Answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        session = self.find(request.path_params["slug"])
        if session is None or not session.accepts(key_of(request.headers)):
            error = UnknownKey("no rollout is open under this URL with this key")
            await error_response(self.wire, error)(scope, receive, send)
            return
        await self.answering(self.wire, session, request, send)


def make_app(find: Callable[[str], Session | None], answering: Answering) -> ASGIApp:
    """The proxy's app. `find` gives the open session of a URL's slug."""

    async def alive(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [Route("/", alive), Route("/api/hello", alive)]
    for path, wire in WIRES.items():
        for prefix in ("/r/{slug}/v1/", "/r/{slug}/"):
            endpoint: Callable[[Scope, Receive, Send], Awaitable[None]] = _ModelCall(wire, find, answering)
            routes.append(Route(prefix + path, endpoint, methods=["POST"]))
    return Starlette(routes=routes)
