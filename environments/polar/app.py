"""The ASGI app: routes, keys, and the probes that harnesses send."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.polar.answering import Answering, bounded_depth, error_response, read_body
from environments.polar.errors import NotFound, PolarError, UnknownKey
from environments.polar.session import Session
from environments.polar.wires.base import WireFormat
from environments.polar.wires.chat import ChatWire
from environments.polar.wires.messages_api import MessagesWire
from environments.polar.wires.responses import ResponsesWire

CHAT, RESPONSES, MESSAGES = ChatWire(), ResponsesWire(), MessagesWire()
WIRES: Mapping[str, WireFormat] = {"chat/completions": CHAT, "responses": RESPONSES, "messages": MESSAGES}
MODEL_CALL = re.compile(rf"/r/(?P<slug>[^/]+)(?:/v1)?/(?P<wire>{'|'.join(WIRES)})")
Find = Callable[[str], Session | None]


def key_of(headers: Mapping[str, str]) -> str:
    """The capability key, however the SDK sends it."""
    bearer = headers.get("authorization", "")
    if bearer.lower().startswith("bearer "):
        return bearer[7:].strip()
    return headers.get("x-api-key") or headers.get("api-key") or ""


@dataclass(frozen=True, slots=True)
class Door:
    """Lets a request to its session, if it has the key."""

    find: Find

    def admit(self, request: Request) -> Session:
        """The request's session. Raises UnknownKey, the same for a wrong key and for a rollout that is not there."""
        session = self.find(request.path_params["slug"])
        if session is None or not session.accepts(key_of(request.headers)):
            raise UnknownKey("no rollout is open under this URL with this key")
        return session


@dataclass(frozen=True, slots=True)
class _App:
    """The ASGI app. Model calls go straight to their answer: they are what latency is about; `others` are routed."""

    door: Door
    answering: Answering
    others: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = MODEL_CALL.fullmatch(scope["path"]) if scope.get("method") == "POST" else None
        if asked is None:
            await self.others(scope, receive, send)
            return
        wire, request = WIRES[asked["wire"]], Request({**scope, "path_params": asked.groupdict()}, receive)
        try:
            session = self.door.admit(request)
        except UnknownKey as error:
            await error_response(wire, error)(scope, receive, send)
            return
        await self.answering(wire, session, request, send)


@dataclass(frozen=True, slots=True)
class _SideEndpoints:
    """Token counts, the model list and probes: answered, never recorded."""

    door: Door
    max_body_bytes: int
    model: str

    async def count_tokens(self, request: Request) -> Response:
        """Anthropic's count: the tokens that this prompt has when it is rendered whole."""
        try:
            session = self.door.admit(request)
            body = await read_body(request, self.max_body_bytes)
            with bounded_depth():
                return JSONResponse({"input_tokens": session.count(MESSAGES.parse(body, request.headers))})
        except PolarError as error:
            return error_response(MESSAGES, error)

    def _described(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "longbreath",
            "display_name": name,
        }

    async def models(self, request: Request) -> Response:
        """The one model, in a form that the SDKs of both vendors read."""
        try:
            self.door.admit(request)
        except UnknownKey as error:
            return error_response(_dialect(request), error)
        name = self.model
        listing = {"object": "list", "data": [self._described(name)], "has_more": False}
        return JSONResponse({**listing, "first_id": name, "last_id": name})

    async def one_model(self, request: Request) -> Response:
        """Any name is served by the one model."""
        try:
            self.door.admit(request)
        except UnknownKey as error:
            return error_response(_dialect(request), error)
        return JSONResponse(self._described(request.path_params["name"]))

    async def no_websocket(self, request: Request) -> Response:
        """Codex tries a WebSocket first; this tells it to use plain HTTP."""
        headers = {"upgrade": "HTTP/1.1", "connection": "Upgrade"}
        return JSONResponse({"error": {"message": "use POST over HTTP"}}, status_code=426, headers=headers)

    async def alive(self, request: Request) -> Response:
        """Says that somebody is here."""
        return JSONResponse({"status": "ok"})


def _dialect(request: Request) -> WireFormat:
    """Whose errors the client reads, where the path is of both vendors."""
    of_messages = request.url.path.endswith(("/messages", "/messages/count_tokens"))
    return MESSAGES if of_messages or "anthropic-version" in request.headers else CHAT


async def _not_found(request: Request, error: Exception) -> Response:
    said = NotFound(f"{request.method} {request.url.path} is no endpoint of this proxy")
    return error_response(_dialect(request), said)


async def _failed(request: Request, error: Exception) -> Response:
    """What nobody foresaw is told in the client's own shape; Starlette raises it again for the server's log."""
    return error_response(_dialect(request), PolarError(f"the recorder failed: {type(error).__name__}: {error}"))


def _routes(side: _SideEndpoints) -> list[Route]:
    routes = [Route("/", side.alive), Route("/api/hello", side.alive)]
    routes += [Route("/r/{slug}", side.alive), Route("/r/{slug}/", side.alive)]
    routes.append(Route("/r/{slug}/api/hello", side.alive))
    for prefix in ("/r/{slug}/v1", "/r/{slug}"):
        routes += [Route(f"{prefix}/{path}", side.no_websocket, methods=["GET"]) for path in WIRES]
        routes.append(Route(f"{prefix}/messages/count_tokens", side.count_tokens, methods=["POST"]))
        routes.append(Route(f"{prefix}/models", side.models))
        routes.append(Route(f"{prefix}/models/{{name:path}}", side.one_model))
    return routes


def make_app(find: Find, answering: Answering, model: str) -> ASGIApp:
    """The proxy's app. `find` gives the open session of a URL's slug; `model` is the name that is listed."""
    door = Door(find)
    side = _SideEndpoints(door, answering.max_body_bytes, model)
    handlers = {404: _not_found, 405: _not_found, Exception: _failed}
    others = Starlette(routes=_routes(side), exception_handlers=handlers)
    return _App(door, answering, others)
