"""`longbreath proxy serve | swap | replay`: stand between a harness and a policy, and read what was recorded."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from flows.cli.errors import EXIT_FAILED, guarded
from flows.cli.live import console
from flows.cli.options import Common

if TYPE_CHECKING:
    from environments.polar.base import Recording, SessionBudget
    from environments.polar.recorder import PolarRecorder
    from infra.engines.base import Sampling
    from tasks.workshop import Workshop

app = App(name="proxy", help="The recording proxy: serve a policy to any harness; read what was recorded.")
SHIPPED = Path("training/assets/tiny")
STOP_CHECK_S = 0.1
OPERATOR_FILE = "operator.json"  # below the log's folder, for its owner alone: where `swap` finds the proxy and its key


@dataclass(frozen=True, slots=True)
class _Where:
    host: str
    port: int
    operator_file: Path


@Parameter(name="*")
@dataclass(frozen=True)
class Served:
    """Which policy, and how much of it.

    Parameters
    ----------
    engine: str
        `local` (transformers, in this process) or the URL of a vLLM server.
    policy: Path
        The Hugging Face folder of the policy; relative: below the checkout.
    max_tokens: int
        The most tokens of one answer.
    temperature: float
        How answers are drawn; what the harness asks for does not count.
    seed: int
        Equal seeds and requests give equal answers.
    max_calls: int
        Calls that one rollout may make.
    max_total_tokens: int
        Tokens that one rollout may sample.
    wall_time_s: float
        Seconds that one rollout may take from its first call on; calls that then run are cut.
    log: Path
        Where the log of calls goes, below the home unless absolute.
    """

    engine: str = "local"
    policy: Path = SHIPPED
    max_tokens: int = 512
    temperature: float = 1.0
    seed: int = 0
    max_calls: int = 1000
    max_total_tokens: int = 1_000_000
    wall_time_s: float = math.inf
    log: Path = Path("proxy")

    @property
    def sampling(self) -> Sampling:
        """As the recorder takes it. Raises ValueError."""
        from infra.engines.base import Sampling

        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens, seed=self.seed)

    @property
    def budget(self) -> SessionBudget:
        """What one rollout may use."""
        from environments.polar.base import SessionBudget

        return SessionBudget(max_calls=self.max_calls, max_tokens=self.max_total_tokens, wall_time_s=self.wall_time_s)

    @contextmanager
    def open(self, home: Path) -> Iterator[tuple[Workshop, PolarRecorder]]:
        """The engine and the recorder before it. Raises FileNotFoundError without a policy, EngineError."""
        from flows.config import CHECKOUT
        from tasks.workshop import EngineConfig, Workshop

        folder = (CHECKOUT / self.policy).resolve()
        if not (folder / "config.json").exists():
            raise FileNotFoundError(f"no model folder at {folder}; give --policy a Hugging Face folder")
        local = self.engine == "local"
        config = EngineConfig(kind="local") if local else EngineConfig(kind="vllm", url=self.engine)
        with Workshop(config, home / self.log, server_as_found=True) as workshop:
            yield workshop, workshop.recorder(workshop.engine(folder, 0))


@app.command
def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    rollout_id: str = "proxy",
    served: Served = Served(),
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Serve the policy to one harness until interrupted; then say what was captured, delivered and trainable.

    Parameters
    ----------
    host: str
        Where to listen; the key guards the rollout, but nothing is encrypted.
    port: int
        The port; 0 takes a free one.
    rollout_id: str
        The name of what is recorded, for `proxy replay`.
    """

    def work() -> int:
        with served.open(common.home) as (workshop, recorder), _stopped_by_signals() as stop:
            where = _Where(host, port, common.home / served.log / OPERATOR_FILE)
            recording = workshop.run(_serve, recorder, served, rollout_id, where, stop)
        report(recording, common)
        return EXIT_FAILED if recording.broken else 0

    return guarded(work)


@contextmanager
def _stopped_by_signals() -> Iterator[Event]:
    """An event that Ctrl-C or a polite kill sets: the rollout is then closed and reported, not cut off."""
    stop = Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def _serve(recorder: PolarRecorder, served: Served, rollout_id: str, where: _Where, stop: Event) -> Recording:
    from environments.polar.command import endpoint_variables
    from environments.polar.server import serving

    key = secrets.token_urlsafe(24)
    async with serving(recorder, host=where.host, port=where.port, admin_key=key) as url:
        endpoint = recorder.open(rollout_id, sampling=served.sampling, budget=served.budget)
        with _told_to_operators(where.operator_file, url, key):
            for name, value in endpoint_variables(endpoint).items():
                print(f"export {name}={value}", flush=True)
            console().print("serving; Ctrl-C ends it, `longbreath proxy swap FOLDER` gives it other weights")
            while not stop.is_set():  # set by a handler in the main thread, which no event of this loop's can wait for
                await asyncio.sleep(STOP_CHECK_S)
        return await recorder.close(rollout_id)


@contextmanager
def _told_to_operators(path: Path, url: str, key: str) -> Iterator[None]:
    """The file by which `swap` finds the proxy that was started last with this log, while it serves."""
    mine = json.dumps({"url": url, "key": key})
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(mine)
    try:
        yield
    finally:
        if path.is_file() and path.read_text() == mine:
            path.unlink()


@app.command
def swap(
    folder: Path,
    *,
    version: int | None = None,
    log: Path = Path("proxy"),
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Give the proxy that serves other weights: calls that run end with the old ones, later calls wait for the new.

    Each call is recorded with the version that it was sampled from.

    Parameters
    ----------
    folder: Path
        The Hugging Face folder of the new weights, as the proxy's host (and a vLLM server's) has it; same tokenizer.
    version: int
        Their version, above the present one; the next unless given.
    log: Path
        The `--log` that `proxy serve` was started with.
    """

    def work() -> int:
        path = common.home / log / OPERATOR_FILE
        if not path.is_file():
            raise FileNotFoundError(
                f"no proxy serves: no {path}; give the --home and --log of `longbreath proxy serve`"
            )
        served = _swapped(json.loads(path.read_text()), {"folder": str(folder.resolve()), "version": version})
        console().print(f"serving version {served}")
        common.emit({"version": served})
        return 0

    return guarded(work)


def _swapped(operator: dict[str, str], body: dict[str, object]) -> int:
    """The version that is served after the swap. Raises ValueError for what the proxy refuses, else EngineError."""
    import httpx

    from environments.polar.admin import WEIGHTS
    from infra.engines.base import EngineError

    url, headers = operator["url"] + WEIGHTS, {"authorization": f"Bearer {operator['key']}"}
    try:  # running calls may take as long as they like
        answer = httpx.post(url, json=body, headers=headers, timeout=httpx.Timeout(30.0, read=None))
    except httpx.HTTPError as error:
        raise EngineError(f"the proxy at {operator['url']} did not answer: {error!r}; is it still running?") from error
    if answer.status_code != 200:
        said = answer.json()["error"]["message"]
        raise ValueError(said) if answer.status_code < 500 else EngineError(said)
    return int(answer.json()["version"])


@app.command
def replay(
    rollout_id: str = "",
    *,
    log: Path = Path("proxy/calls"),
    parquet: Annotated[Path | None, Parameter(name="--parquet")] = None,
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Rebuild a recording from its log, also after a crash; without ROLLOUT_ID, list those there are.

    Parameters
    ----------
    rollout_id: str
        The rollout to rebuild.
    log: Path
        The folder of logs, below the home unless absolute.
    parquet: Path
        Write the calls and chains of all rollouts to this folder too.
    """

    def work() -> int:
        from environments.polar.replay import open_logs, to_parquet
        from environments.polar.replay import replay as rebuild

        folder = common.home / log
        if parquet is not None:
            num_calls, num_chains = to_parquet(folder, parquet)
            console().print(f"{parquet}: {num_calls} calls, {num_chains} chains")
        if rollout_id:
            report(rebuild(folder, rollout_id), common)
            return 0
        logs = open_logs(folder)
        for name, rollout in logs.rollouts.items():
            console().print(f"{name}  {len(rollout.calls)} calls  {'closed' if rollout.closed else 'not closed'}")
        for damage in logs.damaged:
            console().print(f"[red]damaged[/] {damage}")
        common.emit({"rollouts": list(logs.rollouts), "torn_bytes": logs.torn_bytes, "damaged": list(logs.damaged)})
        return 0

    return guarded(work)


def report(recording: Recording, common: Common) -> None:
    """Say what was recorded, for people and, when asked, for machines."""
    from environments.polar.summary import describe, summarise

    summary = summarise([recording])
    console().print(describe(summary))
    common.emit(asdict(summary))
