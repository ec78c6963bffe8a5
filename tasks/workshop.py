"""What the stages of one process share: the engine, the recorder, the boxes, and the loop they live on.

Heavy things are made when first asked for, and ended together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from environments.sandboxes.base import SandboxProvider
from environments.suites.base import Suite
from infra.engines.base import Engine

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from environments.polar.recorder import PolarRecorder

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Who samples. `local`: transformers in this process. `vllm`: a server at `url`.

    `rows` is how many sessions decode together, `threads` how many processor threads they may use.

    `deployment` names a Prefect deployment ('rollouts/gpu', see `infra/prefect.yaml`) that does the training rollouts
    elsewhere, in `shards` parts at a time; it shares the artifact store. Empty: this process does them.
    """

    kind: str = "local"
    url: str = ""
    rows: int = 64
    threads: int = 1
    deployment: str = ""
    shards: int = 1

    def __post_init__(self) -> None:
        if self.shards < 1 or (self.shards > 1 and not self.deployment):
            raise ValueError(
                f"engine.shards is {self.shards} with deployment {self.deployment!r}; want at least 1, and more than 1 "
                f"only with a deployment that does them"
            )
        if self.kind not in ("local", "vllm"):
            raise ValueError(f"engine.kind is {self.kind!r}; want 'local' or 'vllm'")
        for name in ("rows", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine.{name} is {getattr(self, name)}; want at least 1")
        if (self.kind == "vllm") != bool(self.url):
            raise ValueError(
                f"engine.kind {self.kind!r} with url {self.url!r}; a vllm engine needs a url, local has none"
            )


async def _awaited(begun: list[asyncio.Task[T]], function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    begun.append(asyncio.create_task(function(*args)))
    return await begun[0]


async def _ended(begun: list[asyncio.Task[Any]]) -> None:
    for task in begun:
        task.cancel()
        await asyncio.wait([task])


@dataclass
class Workshop:
    """One process's shared tools. Use as a context manager; `run` drives coroutines on the one loop.

    `docker_image`: sandboxes are containers of it; without one they are bubblewrap's. `server_as_found`: a vLLM server
    is asked with the weights it has; otherwise it is first given the policy's.
    """

    engine_config: EngineConfig
    work_folder: Path
    docker_image: str = ""
    server_as_found: bool = False
    _stack: ExitStack = field(default_factory=ExitStack)
    _portal: BlockingPortal | None = None
    _engine: Engine | None = None
    _recorder: PolarRecorder | None = None
    _boxes: SandboxProvider | None = None

    def __enter__(self) -> Workshop:
        from anyio.from_thread import start_blocking_portal

        self._portal = self._stack.enter_context(start_blocking_portal())
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:  # the loop goes last, and each is ended whatever goes wrong with the one before
            try:
                if self._recorder is not None:
                    self.run(self._recorder.aclose)
            finally:
                if self._engine is not None:
                    self.run(self._engine.aclose)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an async function on the workshop's loop and wait for it; interrupted, end it and wait for that."""
        if self._portal is None:
            raise RuntimeError("the workshop is closed; use it as `with Workshop(...) as workshop:`")
        begun: list[asyncio.Task[T]] = []
        try:
            result: T = self._portal.call(_awaited, begun, function, *args)
        except (KeyboardInterrupt, SystemExit):
            # Work that outlived the wait for it would meet a closed recorder, or keep this process alive for good.
            self._portal.call(_ended, begun)
            raise
        return result

    def suite(self, name: str) -> Suite:
        """The suite of that name. Raises KeyError that lists those there are."""
        from environments.suites.registry import suite_named

        return suite_named(name)

    @property
    def boxes(self) -> SandboxProvider:
        """Where sandboxes come from; what dead runs left is swept at the first use."""
        if self._boxes is None:
            self._boxes = self._provider()
            self.run(self._boxes.sweep)
        return self._boxes

    def _provider(self) -> SandboxProvider:
        if self.docker_image:
            from environments.sandboxes.docker import DockerProvider

            return DockerProvider(image=self.docker_image)
        from environments.sandboxes.bubblewrap import BubblewrapProvider

        return BubblewrapProvider()

    def engine(self, folder: Path, version: int) -> Engine:
        """The engine, serving policy `version` from `folder`: started, or its weights swapped when they are older.

        The recorder before it, once there is one, does the swap: it lets running calls end and holds new ones back.
        """
        if self._engine is None:
            self._engine = self.run(self._start_engine, folder, version)
        elif self._engine.policy_version < version:
            self.run((self._recorder or self._engine).load_weights, folder, version)
        if self._engine.policy_version != version:
            raise RuntimeError(
                f"the engine serves policy {self._engine.policy_version}, want {version}: it never goes back"
            )
        return self._engine

    async def _start_engine(self, folder: Path, version: int) -> Engine:
        if self.engine_config.kind == "vllm":
            from infra.engines.vllm import VllmEngine

            if self.server_as_found:
                return VllmEngine(self.engine_config.url, folder, policy_version=version)
            engine = VllmEngine(self.engine_config.url, folder, policy_version=version - 1)
            await engine.load_weights(folder, version)  # it may still hold what another run left
            return engine
        from infra.engines.local import LocalEngine, LocalSettings

        settings = LocalSettings(num_slots=self.engine_config.rows, num_threads=self.engine_config.threads)
        return LocalEngine(folder, policy_version=version, settings=settings)

    def recorder(self, engine: Engine) -> PolarRecorder:
        """The recorder in front of `engine`, its log below the work folder."""
        if self._recorder is None:
            from environments.polar.recorder import PolarRecorder

            self._recorder = self.run(self._start_recorder, PolarRecorder, engine)
        return self._recorder

    async def _start_recorder(self, make: type[PolarRecorder], engine: Engine) -> PolarRecorder:
        return make(engine, self.work_folder / "calls")
