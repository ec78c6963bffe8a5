"""Boxes by bubblewrap: namespaces without network, no capabilities, a world of read-only host tools."""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import count
from pathlib import Path

from environments.sandboxes import control_groups
from environments.sandboxes.base import Sandbox, SandboxError, SandboxSpec
from environments.sandboxes.box import BubblewrapBox, end_process
from environments.sandboxes.box_files import BoxFiles
from environments.sandboxes.inside.wire import pack, unpack
from environments.sandboxes.interpreter import driver, find_interpreter
from environments.sandboxes.launch import (
    HOME,
    INSTALL_HINT,
    Launch,
    Launched,
    find_bwrap,
    launch,
    may_use_own_uids,
    writable_folders,
)
from environments.sandboxes.orphans import kill_orphans
from environments.sandboxes.relay import Relay
from environments.sandboxes.spec_check import check
from environments.sandboxes.syscall_filter import filter_program

START_TIMEOUT_S = 30.0


class BubblewrapProvider:
    """Makes boxes with bwrap, each with a kept shell under a process 1 of ours.

    As root every box gets a user id of its own; as another user, a user namespace. `use_control_groups=False`
    takes the watcher inside the box even where the kernel could hold the limits.
    """

    name = "bubblewrap"

    def __init__(self, *, bwrap: Path | None = None, use_control_groups: bool = True) -> None:
        self._bwrap = bwrap
        self._own_uids = may_use_own_uids()
        self._parents = control_groups.find_parents() if use_control_groups else None
        self._numbers = count()
        self._owner = f"{os.getpid()}-{control_groups.start_tick(os.getpid())}"
        self.not_covered = _not_covered(groups=self._parents is not None)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A fresh box, ready for its first command. Raises SandboxError with the mend when the host cannot."""
        check(spec, own_uids=self._own_uids)
        how = Launch(bwrap=find_bwrap(self._bwrap), interpreter=find_interpreter(), own_uids=self._own_uids)
        name = f"{control_groups.PREFIX}{self._owner}-{next(self._numbers)}"
        group = self._make_group(name, spec)
        try:
            launched = launch(how, spec, name=name, group=group)
        except OSError as error:
            if group:
                group.remove()
            raise SandboxError(f"cannot run {how.bwrap}: {error}; {INSTALL_HINT}") from error
        try:
            return await self._finish(spec, how, launched, group)
        except BaseException:
            launched.control.close()
            await asyncio.to_thread(end_process, launched.process)
            os.close(launched.complaints_fd)
            if group:
                group.remove()
            raise

    async def sweep(self) -> int:
        """Kill and remove boxes whose owner process is dead."""
        names = await asyncio.to_thread(kill_orphans)
        if self._parents:
            names |= await asyncio.to_thread(control_groups.sweep, self._parents)
        return len(names)

    def _make_group(self, name: str, spec: SandboxSpec) -> control_groups.ControlGroup | None:
        if self._parents is None:
            return None
        try:
            return control_groups.ControlGroup(self._parents, name, spec.limits)
        except OSError as error:
            raise SandboxError(
                f"cannot make the control group {name}: {error}; is it still delegated to us?"
            ) from error

    async def _finish(
        self, spec: SandboxSpec, how: Launch, launched: Launched, group: control_groups.ControlGroup | None
    ) -> Sandbox:
        """Tell process 1 what it is, and take what it hands over."""
        launched.control.setblocking(False)
        files = None
        relays: list[Relay] = []
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.get_running_loop().sock_sendall(launched.control, pack(_config(spec, how, launched)))
                root_fd = await _take_descriptor(launched)
                files = BoxFiles(root_fd, (launched.uid, launched.uid) if self._own_uids else None)
                for exposed in spec.exposed:
                    listener = socket.socket(fileno=await _take_descriptor(launched))
                    relays.append(await Relay.start(listener, exposed.host_socket))
                await _expect_ready(launched)
            return BubblewrapBox(spec, launched, files, group, tuple(relays))
        except (OSError, TimeoutError) as error:
            for relay in relays:
                await relay.close()
            if files:
                files.close()
            raise SandboxError(
                f"box {spec.label!r} did not start: {launched.complaints() or error}; bwrap needs permission to make "
                "namespaces (user.max_user_namespaces above 0; in a container --privileged)"
            ) from error


def _config(spec: SandboxSpec, how: Launch, launched: Launched) -> list[bytes]:
    limits = spec.limits
    env = {"PATH": how.interpreter.search_path, "HOME": HOME, "LANG": "C.UTF-8"} | dict(spec.env)
    texts = [
        str(launched.uid),
        str(limits.processes),
        str(limits.memory_mb * 2**20),
        str(limits.output_bytes),
        str(limits.cpu_s),
        spec.workdir,
        "\0".join(writable_folders(spec)),
        " ".join(str(e.port) for e in spec.exposed),
        " ".join(map(str, launched.counter_fds)),
        "\0".join(f"{key}={value}" for key, value in env.items()),
        driver(),
    ]
    return [text.encode() for text in texts]


async def _take_descriptor(launched: Launched) -> int:
    """A descriptor that process 1 sends. Raises ConnectionError when it is gone."""
    await _readable(launched.control)
    data, fds, _, _ = socket.recv_fds(launched.control, 1, 1)
    if not data or not fds:
        raise ConnectionError("process 1 ended before the box was ready")
    return fds[0]


async def _expect_ready(launched: Launched) -> None:
    inbox = bytearray()
    while unpack(inbox) is None:
        data = await asyncio.get_running_loop().sock_recv(launched.control, 64)
        if not data:
            raise ConnectionError("process 1 ended before the box was ready")
        inbox += data


async def _readable(channel: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(channel, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel)


def _not_covered(*, groups: bool) -> tuple[str, ...]:
    known = [
        "the host's kernel is shared: a kernel bug reachable by ordinary system calls is not held back",
        "the host's /usr can be read, so a box tells which packages the host has",
        "CPU: a command is ended when its whole tree has used cpu_s, and any process when it has used cpu_s alone, but "
        "shares of processor, disk and memory bandwidth are not divided between boxes",
        "disk_mb holds for workdir, /tmp and the home each; files live in memory and count against memory_mb",
        "an agent can find the private descriptors that its shell has saved, and so spoil its own shell",
    ]
    if filter_program() is None:
        known.append("the numbers of this machine's system calls are not known here, so none is filtered")
    if not groups:
        known.append(
            "no control group can be written here: memory is measured every 20 ms while a command runs and every "
            "200 ms after, so a fast hog passes the limit for that long, and kernel memory or shared memory that no "
            "process maps is not seen"
        )
    return tuple(known)
