"""The recorder: sessions, engine, log and app held together."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from environments.harnesses.base import Endpoint
from environments.polar.answering import Answering
from environments.polar.app import make_app
from environments.polar.base import Recording, SessionBudget
from environments.polar.calls import CallRunner, LiveCall
from environments.polar.log import LogWriter
from environments.polar.recording import build_recording, read_rollouts
from environments.polar.rendering import Rendering, load_rendering
from environments.polar.session import Asked, Model, Session
from infra.digests import digest_of
from infra.engines.base import Engine, Sampling

MODEL_NAME = "policy"
IN_PROCESS_URL = "http://polar.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """`keep_alive_s`: silence on a stream before a comment is sent. `max_body_bytes`: larger bodies get a 400."""

    keep_alive_s: float = 10.0
    max_body_bytes: int = 64 * 1024 * 1024


def _new_key() -> str:
    return secrets.token_urlsafe(24)


class PolarRecorder:
    """Stands between harnesses and one engine, and records every token. Implements `base.Recorder`.

    `log_folder` receives one append-only file. `public_url` is where the app is served (see `server`); without
    it, endpoints carry an in-process transport.
    """

    def __init__(
        self,
        engine: Engine,
        log_folder: Path,
        *,
        public_url: str | None = None,
        settings: RecorderSettings | None = None,
        rendering: Rendering | None = None,
        clock: Callable[[], float] = time.time,
        make_key: Callable[[], str] = _new_key,
    ) -> None:
        self.settings = settings or RecorderSettings()
        self.rendering = rendering or load_rendering(engine.model_folder)
        self.log = LogWriter(log_folder)
        self._engine = engine
        self._clock = clock
        self._make_key = make_key
        self._public_url = public_url
        self._sessions: dict[str, Session] = {}
        self._slugs: dict[str, str] = {}
        self._runner = CallRunner(engine=engine, rendering=self.rendering, log=self.log, clock=clock)
        answering = Answering(
            runner=self._runner,
            start=self._start,
            keep_alive_s=self.settings.keep_alive_s,
            max_body_bytes=self.settings.max_body_bytes,
        )
        self.app = make_app(lambda slug: self._sessions.get(self._slugs.get(slug, "")), answering)

    def open(self, rollout_id: str, *, sampling: Sampling, budget: SessionBudget) -> Endpoint:
        """A URL and key of its own for this rollout. Raises ValueError when it is open already."""
        if rollout_id in self._sessions:
            raise ValueError(f"rollout {rollout_id!r} is open already; close it first, or use another id")
        slug = rollout_id if re.fullmatch(r"[A-Za-z0-9._~-]+", rollout_id) else digest_of(rollout_id)[:24]
        session = Session(
            rollout_id=rollout_id,
            key=self._make_key(),
            sampling=sampling,
            budget=budget,
            model=Model(rendering=self.rendering, max_context=self._engine.max_context),
            log=self.log,
            clock=self._clock,
        )
        self._sessions[rollout_id] = session
        self._slugs[slug] = rollout_id
        head = {"kind": "open", "rollout": rollout_id, "at": self._clock(), "tokenizer": self.rendering.digest}
        session.offsets.append(self.log.append(head))
        transport = httpx.ASGITransport(app=self.app) if self._public_url is None else None
        return Endpoint(
            base_url=f"{self._public_url or IN_PROCESS_URL}/r/{slug}",
            api_key=session.key,
            model=MODEL_NAME,
            transport=transport,
        )

    def _start(self, session: Session, asked: Asked) -> LiveCall:
        call = session.begin(asked)
        call.task = asyncio.create_task(self._runner.run(call, lambda c: session.finished(c, asked)))
        return call

    async def close(self, rollout_id: str) -> Recording:
        """End the session, make its log durable, and stitch its calls. Raises ValueError when it is not open."""
        session = self._sessions.get(rollout_id)
        if session is None:
            raise ValueError(f"rollout {rollout_id!r} is not open; open it first (it may be closed already)")
        self._slugs = {slug: name for slug, name in self._slugs.items() if name != rollout_id}
        running = list(session.running)
        for call in running:
            call.abort()
        await asyncio.gather(*(c.task for c in running if c.task is not None), return_exceptions=True)
        head = {
            "kind": "close",
            "rollout": rollout_id,
            "at": self._clock(),
            "budget_hit": session.budget_hit,
        }
        session.offsets.append(self.log.append(head))
        await self.log.commit()
        for name in session.engine_sessions:
            await self._engine.close_session(name)
        del self._sessions[rollout_id]
        entries = [self.log.read_at(offset) for offset in session.offsets]
        return build_recording(read_rollouts(entries)[rollout_id])

    async def aclose(self) -> None:
        """Close all sessions and the log. The engine is its owner's."""
        for rollout_id in list(self._sessions):
            await self.close(rollout_id)
        self.log.close()
