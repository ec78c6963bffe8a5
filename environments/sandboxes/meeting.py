"""The first words between the host and a box's process 1: what the box is, and what process 1 hands over."""

from __future__ import annotations

import asyncio
import socket

from environments.sandboxes.base import SandboxError, SandboxSpec
from environments.sandboxes.box import BoxHost, KeptShellBox
from environments.sandboxes.box_files import BoxFiles
from environments.sandboxes.inside.wire import pack, unpack
from environments.sandboxes.interpreter import driver
from environments.sandboxes.relay import Relay

HOME = "/home/agent"
START_TIMEOUT_S = 60.0


def writable_folders(spec: SandboxSpec) -> list[str]:
    """Folders that the agent may write, each a memory file system of its own size."""
    return [spec.workdir, "/tmp", HOME]


def accounts(uid: int) -> dict[str, bytes]:
    """The files of /etc that name the box's user and its loopback."""
    passwd = f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n"
    return {
        "/etc/passwd": passwd.encode(),
        "/etc/group": f"root:x:0:\nagent:x:{uid}:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost box\n::1 localhost\n",
    }


def configuration(spec: SandboxSpec, *, uid: int, search_path: str, counters: tuple[str, ...]) -> list[bytes]:
    """What process 1 must know (`inside.shell.Config` reads it); all the agent's environment is in it.

    `counters`: control group files for memory and processes, as paths in the box or descriptors of process 1.
    """
    limits = spec.limits
    env = {"PATH": search_path, "HOME": HOME, "LANG": "C.UTF-8"} | dict(spec.env)
    texts = [
        str(uid),
        str(limits.processes),
        str(limits.memory_mb * 2**20),
        str(limits.output_bytes),
        str(limits.cpu_s),
        spec.workdir,
        "\0".join(writable_folders(spec)),
        " ".join(str(e.port) for e in spec.exposed),
        "\0".join(counters),
        "\0".join(f"{key}={value}" for key, value in env.items()),
        driver(),
    ]
    return [text.encode() for text in texts]


async def meet(
    spec: SandboxSpec,
    control: socket.socket,
    host: BoxHost,
    config: list[bytes],
    *,
    owner: tuple[int, int] | None,
    hint: str,
) -> KeptShellBox:
    """Configure process 1 and take the box over. On any failure all of it is ended; SandboxError quotes `hint`."""
    control.setblocking(False)
    taken = _Taken()
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await asyncio.get_running_loop().sock_sendall(control, pack(config))
            taken.files = BoxFiles(await _take_descriptor(control), owner)
            for exposed in spec.exposed:
                listener = socket.socket(fileno=await _take_descriptor(control))
                taken.relays.append(await Relay.start(listener, exposed.host_socket))
            await _expect_ready(control)
        return KeptShellBox(spec, control, host, taken.files, tuple(taken.relays))
    except (OSError, TimeoutError) as error:
        complaints = host.complaints()
        await _undo(control, host, taken)
        raise SandboxError(f"box {spec.label!r} did not start: {complaints or error}; {hint}") from error
    except BaseException:
        await _undo(control, host, taken)
        raise


class _Taken:
    """What has been handed over so far."""

    def __init__(self) -> None:
        self.files: BoxFiles | None = None
        self.relays: list[Relay] = []


async def _undo(control: socket.socket, host: BoxHost, taken: _Taken) -> None:
    for relay in taken.relays:
        await relay.close()
    if taken.files:
        taken.files.close()
    control.close()
    await asyncio.to_thread(host.end)


async def _take_descriptor(control: socket.socket) -> int:
    """A descriptor that process 1 sends. Raises ConnectionError when it is gone."""
    await _readable(control)
    data, fds, _, _ = socket.recv_fds(control, 1, 1)
    if not data or not fds:
        raise ConnectionError("process 1 ended before the box was ready")
    return fds[0]


async def _expect_ready(control: socket.socket) -> None:
    inbox = bytearray()
    while unpack(inbox) is None:
        data = await asyncio.get_running_loop().sock_recv(control, 64)
        if not data:
            raise ConnectionError("process 1 ended before the box was ready")
        inbox += data


async def _readable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(control)
