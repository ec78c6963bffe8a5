"""The recorder: sessions, engine, log and app held together."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from environments.harnesses.base import Endpoint
from environments.polar.answering import Answering
from environments.polar.app import make_app
from environments.polar.base import Recording, SessionBudget
from environments.polar.calls import CallRunner, LiveCall
from environments.polar.errors import Crowded, LogFailed, Overloaded
from environments.polar.gate import Gate
from environments.polar.log import LogWriter, RolloutLog
from environments.polar.logged import read_rollouts
from environments.polar.recording import build_recording
from environments.polar.rendering import Rendering, load_rendering
from environments.polar.session import Asked, Model, Session
from environments.polar.spending import Spending
from infra.digests import digest_of
from infra.engines.base import Engine, Sampling

MODEL_NAME = "policy"
IN_PROCESS_URL = "http://polar.invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderSettings:
    """How the proxy holds back. Silence of `keep_alive_s` on a stream is filled with a comment; bodies larger than
    `max_body_bytes` get a 400; `max_running` calls are in the engine and `max_waiting` queue, others get a 429.
    One rollout has at most `max_per_session` of both, and no more than its share of all places, so that none can
    keep the others out. `rerender` serves as production would: each prompt is rendered whole, so that the deployment
    gap can be measured.
    """

    keep_alive_s: float = 10.0
    max_body_bytes: int = 64 * 1024 * 1024
    max_running: int = 512
    max_waiting: int = 2048
    max_per_session: int = 32
    rerender: bool = False


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
        self.gate = Gate(self.settings.max_running, self.settings.max_waiting)
        self.public_url = public_url
        self._engine = engine
        self._clock = clock
        self._make_key = make_key
        self._sessions: dict[str, Session] = {}
        self._slugs: dict[str, str] = {}
        self._runner = CallRunner(engine=engine, rendering=self.rendering, clock=clock, gate=self.gate)
        answering = Answering(
            runner=self._runner,
            start=self._start,
            keep_alive_s=self.settings.keep_alive_s,
            max_body_bytes=self.settings.max_body_bytes,
        )
        self.app = make_app(lambda slug: self._sessions.get(self._slugs.get(slug, "")), answering, MODEL_NAME)

    def open(self, rollout_id: str, *, sampling: Sampling, budget: SessionBudget) -> Endpoint:
        """A URL and key of its own for this rollout. Raises ValueError when it is open already, LogFailed.

        The base URL takes paths with and without `/v1` before them.
        """
        if rollout_id in self._sessions:
            raise ValueError(f"rollout {rollout_id!r} is open already; close it first, or use another id")
        slug = rollout_id if re.fullmatch(r"[A-Za-z0-9._~-]+", rollout_id) else digest_of(rollout_id)[:24]
        log = RolloutLog(self.log, rollout_id)
        about = {"tokenizer": self.rendering.digest, "version": self.policy_version}
        log.append("open", {"at": self._clock(), **about})
        session = Session(
            rollout_id=rollout_id,
            key=self._make_key(),
            sampling=sampling,
            spending=Spending(budget=budget),
            model=Model(self.rendering, self._engine.max_context, self.settings.rerender),
            log=log,
            clock=self._clock,
        )
        self._sessions[rollout_id] = session
        self._slugs[slug] = rollout_id
        return Endpoint(
            base_url=f"{self.public_url or IN_PROCESS_URL}/r/{slug}",
            api_key=session.key,
            model=MODEL_NAME,
            transport=httpx.ASGITransport(app=self.app) if self.public_url is None else None,
        )

    def _check_share(self, session: Session) -> None:
        share = max(1, min(self.settings.max_per_session, self.gate.num_places // len(self._sessions)))
        if len(session.running) >= share:
            raise Crowded(f"{len(session.running)} calls of this rollout run or wait; {share} may at once")

    def _start(self, session: Session, asked: Asked) -> LiveCall:
        self._check_share(session)
        try:
            self.gate.check()
            call = session.begin(asked)
        except (LogFailed, Overloaded) as error:
            session.refused = error.message
            raise
        session.refused = ""
        self.gate.enter()
        call.task = asyncio.create_task(self._runner.run(call, lambda c: session.finished(c, asked)))
        return call

    async def close(self, rollout_id: str) -> Recording:
        """End the session, make its log durable, and stitch its calls.

        Raises ValueError when it is not open, LogFailed when the log cannot be written (it is closed all the same).
        """
        session = self._sessions.get(rollout_id)
        if session is None:
            raise ValueError(f"rollout {rollout_id!r} is not open; open it first (it may be closed already)")
        session.closed = True
        self._slugs = {slug: name for slug, name in self._slugs.items() if name != rollout_id}
        running = list(session.running)
        for call in running:
            call.abort()
        await asyncio.gather(*(c.task for c in running if c.task is not None), return_exceptions=True)
        del self._sessions[rollout_id]
        for name in session.engine_sessions:
            await self._engine.close_session(name)
        hit, refused = session.spending.hit, session.refused
        session.log.close({"at": self._clock(), "budget_hit": hit, "refused": refused})
        await self.log.commit()
        return build_recording(read_rollouts(session.log.entries())[rollout_id])

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next token will be drawn from."""
        return self._engine.policy_version

    async def load_weights(self, folder: Path, version: int) -> None:
        """Let running calls end, hold new ones back, swap the engine's weights, and go on. No call is refused."""
        async with self.gate.drained():
            await self._engine.load_weights(folder, version)

    async def aclose(self) -> None:
        """Close all sessions, those whose log cannot be written too, and then the log. The engine is its owner's.

        Raises the last of what went wrong (LogFailed, OSError); what went wrong before is its context.
        """
        async with AsyncExitStack() as closing:
            closing.callback(self.log.close)
            for rollout_id in reversed(self._sessions):
                closing.push_async_callback(self.close, rollout_id)
