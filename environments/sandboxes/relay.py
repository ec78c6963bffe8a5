"""The only way out of a box: a loopback port in it, carried to one unix socket of the host.

The listening socket was opened in the box's network namespace by its process 1 and handed to us; accepting and
copying happen in the host process, so nothing of the relay can be reached or killed from inside.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

CHUNK_BYTES = 65_536
MAX_CONNECTIONS = 64  # of one box at a time; more are closed at once, so that a box cannot use up our descriptors


class Relay:
    """Copies connections of one listening socket to a host unix socket until closed."""

    def __init__(self, host_socket: Path) -> None:
        self._host_socket = host_socket
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    async def start(listener: socket.socket, host_socket: Path) -> Relay:
        """Begin to serve. `listener` is owned from here on."""
        relay = Relay(host_socket)
        listener.setblocking(False)
        relay._server = await asyncio.start_server(relay._serve, sock=listener)
        return relay

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # a connection callback runs as a task
        self._tasks.add(task)
        try:
            if len(self._tasks) <= MAX_CONNECTIONS:
                await self._carry(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host_reader, host_writer = await asyncio.open_unix_connection(str(self._host_socket))
        except OSError:
            return  # the box sees its connection closed, as with any dead server
        try:
            await asyncio.gather(_copy(reader, host_writer), _copy(host_reader, writer))
        finally:
            host_writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry one direction to its end, then half-close the other side."""
    try:
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
    except ConnectionError:
        target.close()
