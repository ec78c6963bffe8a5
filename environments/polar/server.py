"""The app on a real socket: TCP on loopback, or a unix socket that a sandbox can be given."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from environments.polar.admin import Admin
from environments.polar.recorder import PolarRecorder

# Young collections are rare enough that most of a request's objects are gone before one comes.
GC_THRESHOLD = (20_000, 20, 50)


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers: whoever serves decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _tcp_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it. asyncio sets it only where a socket names its protocol, and a response of two
    # writes would wait for the client's delayed acknowledgement: 40 ms.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind((host, port))
    return sock


def _unix_socket(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    path.chmod(0o666)  # a sandbox's user connects to it; the capability key is what lets one in
    return sock


def _config(app: ASGIApp) -> uvicorn.Config:
    # WebSockets are off, so that an upgrade attempt arrives as the plain GET that the app answers with 426.
    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )


@contextmanager
def _short_pauses() -> Iterator[None]:
    """Keep the garbage collector from stopping answers to look through what lives as long as the server.

    A model library leaves some hundred thousand objects behind; a full collection over them takes tens of
    milliseconds, and the bodies of requests bring one about every few seconds. A second server changes nothing.
    """
    before = gc.get_threshold()
    if before == GC_THRESHOLD:
        yield
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@asynccontextmanager
async def serving(
    recorder: PolarRecorder,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    unix_socket: Path | None = None,
    admin_key: str | None = None,
) -> AsyncIterator[str]:
    """Serve while the body runs; yields the URL, which endpoints opened meanwhile carry.

    With `unix_socket` the URL is only a form (http://localhost): whoever connects needs the socket's path too. With
    `admin_key` its holder may swap weights here (see `admin`). Raises OSError when the address is taken.
    """
    sock = _unix_socket(unix_socket) if unix_socket is not None else _tcp_socket(host, port)
    try:
        url = "http://localhost" if unix_socket is not None else f"http://{host}:{sock.getsockname()[1]}"
        server = _Server(_config(recorder.app if admin_key is None else Admin(recorder, admin_key)))
        running = asyncio.create_task(server.serve(sockets=[sock]))
        before, recorder.public_url = recorder.public_url, url
        try:
            while not server.started and not running.done():
                await asyncio.sleep(0.005)
            with _short_pauses():
                yield url
        finally:
            recorder.public_url = before
            server.should_exit = True
            await running
    finally:
        sock.close()
        if unix_socket is not None:
            unix_socket.unlink(missing_ok=True)
