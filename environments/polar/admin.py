"""The operator's endpoint beside those of the harnesses: weights are swapped while the proxy serves."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from environments.polar.answering import error_response, read_body
from environments.polar.app import CHAT, key_of
from environments.polar.errors import BadBody, EngineFailed, NotFound, PolarError, UnknownKey
from environments.polar.recorder import PolarRecorder
from environments.polar.rendering import load_rendering
from environments.polar.wires.fields import need_text, positive_int
from infra.engines.base import EngineError

WEIGHTS = "/admin/weights"
MAX_BODY_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Admin:
    """The recorder's app, and before it `POST /admin/weights` for who has the operator's `key`.

    The body is {"folder": a model folder on this host, "version": the next one unless given}. It is answered with
    {"version": n} once every later call is sampled from those weights: calls that run end with the old ones, calls that
    come meanwhile wait, none is refused. After an error the old weights are served on.
    """

    recorder: PolarRecorder
    key: str
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an operator, or leave it to the recorder. What nobody foresaw is told too, and then raised."""
        if scope["path"] != WEIGHTS:
            await self.recorder.app(scope, receive, send)
            return
        try:
            answer = await self._answer(Request(scope, receive))
        except Exception as error:
            said = PolarError(f"the swap failed: {type(error).__name__}: {error}")
            await error_response(CHAT, said)(scope, receive, send)
            raise
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            if not hmac.compare_digest(self.key.encode(), key_of(request.headers).encode("utf-8", "surrogatepass")):
                raise UnknownKey("this is not the operator's key")
            if request.method != "POST":
                raise NotFound(f"{request.method} {WEIGHTS} is no endpoint of this proxy; want POST")
            body = await read_body(request, MAX_BODY_BYTES)
            async with self._one_at_a_time:
                return JSONResponse({"version": await self._swap(body)})
        except PolarError as error:
            return error_response(CHAT, error)

    async def _swap(self, body: Mapping[str, Any]) -> int:
        folder = Path(need_text(body.get("folder"), "folder"))
        version = positive_int(body.get("version"), "version") or self.recorder.policy_version + 1
        await asyncio.to_thread(self._check, folder)
        try:
            await self.recorder.load_weights(folder, version)
        except EngineError as error:
            raise EngineFailed(str(error)) from error
        except ValueError as error:  # the engine's word for a version that does not grow
            raise BadBody(str(error)) from error
        return version

    def _check(self, folder: Path) -> None:
        """Raise BadBody unless the folder's model speaks in the ids of the one that is served."""
        if not (folder.is_absolute() and (folder / "config.json").is_file()):
            raise BadBody(f"folder is {str(folder)!r}; want the absolute path of a model folder on the proxy's host")
        try:
            same = load_rendering(folder).digest == self.recorder.rendering.digest
        except (ValueError, OSError) as error:
            raise BadBody(f"the tokenizer of {folder} does not load: {error}") from error
        if not same:
            raise BadBody(
                f"the tokenizer, chat template or renderer.json of {folder} is not that of the policy served; its ids "
                "would mean other texts: serve it by a proxy of its own"
            )
