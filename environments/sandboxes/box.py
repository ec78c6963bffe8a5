"""A running bubblewrap box, as the host holds it."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import Protocol, cast

from environments.sandboxes.base import BoxFault, CommandResult, SandboxError, SandboxSpec, StateChange
from environments.sandboxes.box_files import BoxFiles
from environments.sandboxes.inside.wire import pack, unpack
from environments.sandboxes.relay import Relay
from environments.sandboxes.tree_state import changes, export_tree, import_tree

ANSWER_GRACE_S = 30.0  # past a command's own timeout; a host that answers later than this is broken
STOP_GRACE_S = 2.0
READ_BYTES = 65_536
NUL_MESSAGE = "bash: the command holds a NUL byte, which no shell can run\n"


class BoxHost(Protocol):
    """What holds a box up outside it: a bwrap process, a container."""

    def complaints(self) -> str:
        """What it wrote to stderr."""
        ...

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ever killed a process of the box for memory."""
        ...

    def end(self) -> None:
        """End every process of the box and free what the host holds for it. Blocks until that is done."""
        ...


class KeptShellBox:
    """One box with our process 1 in it. Made by `meeting.meet`; see `Sandbox` for the contract."""

    def __init__(
        self, spec: SandboxSpec, control: socket.socket, host: BoxHost, files: BoxFiles, relays: tuple[Relay, ...]
    ) -> None:
        self._spec = spec
        self._control = control
        self._host = host
        self._files = files
        self._workdir = files.below(spec.workdir)
        self._relays = relays
        self._lock = asyncio.Lock()
        self._inbox = bytearray()
        self._sequence = 0
        self._stopped = False

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run a command in the kept shell. A cancelled call ends the command as its timeout would."""
        if "\0" in command:
            return CommandResult(exit_code=2, output=NUL_MESSAGE, timed_out=False, truncated=False, duration_s=0.0)
        started = time.perf_counter()
        request = [b"run", repr(timeout_s).encode(), command.encode("utf-8", "replace")]
        async with self._lock:
            try:
                code, timed_out, truncated, fault, output = await self._ask(request, timeout_s + ANSWER_GRACE_S)
            except EOFError as error:
                code, timed_out, truncated, fault, output = await asyncio.to_thread(self._ended_for_good, error)
        return CommandResult(
            exit_code=int(code) if code else None,
            output=output.decode(),
            timed_out=bool(timed_out),
            truncated=bool(truncated),
            duration_s=time.perf_counter() - started,
            fault=cast("BoxFault | None", fault.decode() or None),
        )

    def _ended_for_good(self, error: EOFError) -> list[bytes]:
        """The answer of a box whose process 1 fell to the memory limit too. Raises SandboxError otherwise."""
        if self._host.ran_out_of_memory():
            return [b"137", b"", b"", b"out_of_memory", b"[the box ran out of memory and has ended]\n"]
        raise SandboxError(
            f"box {self._spec.label!r} is gone: its process 1 was ended from outside. {self._host.complaints()}"
        ) from error

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file (parents made; a link there is replaced). Raises OSError when the tree or disk forbids it."""
        await asyncio.to_thread(self._files.write, self._absolute(path), data, mode=mode)

    async def get(self, path: str) -> bytes:
        """Read a regular file. Raises FileNotFoundError for all that is none (absent, a folder, a pipe, only holes)."""
        limit = self._spec.limits.disk_mb * 2**20
        try:
            return await asyncio.to_thread(self._files.read, self._absolute(path), max_bytes=limit)
        except OSError as error:
            raise FileNotFoundError(f"no readable file at {path} in the box: {error.strerror}") from error

    async def export_state(self) -> bytes:
        """The tree below workdir as tar bytes that depend on its content alone (see `export_tree`)."""
        return await asyncio.to_thread(export_tree, self._workdir, max_hole_bytes=self._spec.limits.disk_mb * 2**20)

    async def import_state(self, state: bytes) -> None:
        """Lay a tree below workdir. Raises ValueError for a tar that is unsafe, OSError when the tree forbids it."""
        await asyncio.to_thread(import_tree, self._workdir, state)

    async def diff(self, state: bytes) -> tuple[StateChange, ...]:
        """What has changed below workdir since `state`, sorted by path."""
        return await asyncio.to_thread(changes, state, await self.export_state())

    async def stop(self) -> None:
        """End the box; returns when the kernel has no process of it left."""
        if self._stopped:
            return
        self._stopped = True
        for relay in self._relays:
            await relay.close()
        self._control.close()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._workdir.close()
        self._files.close()
        self._host.end()

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._spec.workdir}/{path}"

    async def _ask(self, request: list[bytes], patience_s: float) -> list[bytes]:
        if self._stopped:
            raise SandboxError(f"box {self._spec.label!r} has been stopped; start a new one")
        self._sequence += 1
        sequence = str(self._sequence).encode()
        try:
            async with asyncio.timeout(patience_s):
                message = pack([request[0], sequence, *request[1:]])
                await asyncio.get_running_loop().sock_sendall(self._control, message)
                return await self._answer(sequence)
        except asyncio.CancelledError:
            with suppress(OSError):  # a box that is gone needs no abort
                self._control.send(pack([b"abort", sequence]))
            raise
        except ConnectionError as error:
            raise EOFError("process 1 closed its socket") from error
        except TimeoutError as error:
            raise SandboxError(
                f"box {self._spec.label!r} gave no answer within {patience_s:.0f} s; the host is overloaded"
            ) from error

    async def _answer(self, sequence: bytes) -> list[bytes]:
        """The reply to `sequence`; replies to cancelled requests are dropped."""
        loop = asyncio.get_running_loop()
        while True:
            while (message := unpack(self._inbox)) is not None:
                if message[0] == sequence:
                    return message[1:]
            data = await loop.sock_recv(self._control, READ_BYTES)
            if not data:
                raise EOFError("process 1 closed its socket")
            self._inbox += data
