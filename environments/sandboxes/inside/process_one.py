"""Process 1 of a box: keeps the shell, ends trees, reaps orphans, and answers the host over one socket.

It is outside the agent's reach: the kernel drops signals that a process of the box sends to process 1, and it runs
as another user wherever the host user is root.
"""

from __future__ import annotations

import _socket
import os
import select
import signal
import time

from . import tree
from .output import Output
from .shell import Config, Shell
from .wire import pack, unpack

WATCH_S = 0.02
IDLE_WATCH_S = 0.2
NEW_SHELL_NOTE = b"[a new shell was started: its variables, functions and settings are gone]\n"


class HostGone(Exception):
    """The host closed its end: the box must go too."""


class Box:
    """The state of process 1: the shell, where it stood, and what is watched."""

    def __init__(self, control: _socket.socket, config: Config) -> None:
        self.control = control
        self.config = config
        self.inbox = bytearray()
        self.cwd = config.workdir
        self.notes = b""
        self.idle_output = Output(config.output_bytes)
        self.wake_r, wake_w = os.pipe()
        os.set_blocking(self.wake_r, False)
        os.set_blocking(wake_w, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self.dead: tuple[int, str] | None = None
        self.shell = Shell(config, self.cwd)

    # ---- what happens

    def serve(self) -> None:
        """Answer the host until it goes."""
        while True:
            for message in self.messages(None):
                self.answer(message)

    def answer(self, message: list[bytes]) -> None:
        """One request, one reply; an abort that comes late has nothing to stop."""
        kind, sequence = message[:2]
        if kind == b"run":
            self.reply(sequence, self.run(message[3], float(message[2])))
        elif kind == b"end":
            tree.end_newcomers({}, self.shell.pid)
            self.reply(sequence, [])

    def run(self, command: bytes, timeout_s: float) -> list[bytes]:
        """Run one command: [exit code or nothing, timed out, truncated, fault, output]."""
        self.revive()
        output, self.idle_output = self.idle_output, Output(self.config.output_bytes)
        output.feed(self.notes)
        self.notes = b""
        found = tree.processes()
        self.before = {pid: p.started for pid, p in found.items()}
        cpu_end_s = tree.total_cpu_s(found) + self.config.cpu_s
        nonce = os.urandom(16).hex().encode()
        self.shell.start(command, nonce)
        code, timed_out, fault = self.follow(nonce, output, time.monotonic() + timeout_s, cpu_end_s)
        self.drain(output, self.shell.waiting_output())
        if self.dead:
            self.bury(output)
        return [
            str(code).encode() if code is not None else b"",
            b"1" * timed_out,
            b"1" * output.truncated,
            fault,
            output.text(),
        ]

    def follow(self, nonce: bytes, output: Output, end: float, cpu_end_s: float) -> tuple[int | None, bool, bytes]:
        """Wait for the end of the command, whichever way it ends: (exit code, timed out, fault)."""
        watch_at = time.monotonic() + WATCH_S
        while True:
            now = time.monotonic()
            if now >= end:
                return self.stop_command(b"", timed_out=True)
            if now >= watch_at:
                watch_at = now + WATCH_S
                found = tree.processes()
                fault = self.excess(found)
                if fault or tree.total_cpu_s(found) > cpu_end_s:
                    return self.stop_command(fault, timed_out=not fault)
            ready = self.wait(min(end, watch_at) - now)
            if self.shell.output in ready:
                self.drain(output, 65536)
            if self.shell.status in ready:
                ended = self.shell.ended(nonce)
                if ended:
                    self.cwd = ended[1]
                    return ended[0], False, b""
            if self.dead:
                return self.dead[0], False, self.dead[1].encode()
            if self.control.fileno() in ready and any(m[0] == b"abort" for m in self.messages(0)):
                return self.stop_command(b"", timed_out=True)

    def stop_command(self, fault: bytes, *, timed_out: bool) -> tuple[int | None, bool, bytes]:
        """End the running command's whole tree and the shell that would go on with its next line."""
        tree.send(self.shell.pid, signal.SIGSTOP)
        tree.end_newcomers(self.before, self.shell.pid)
        tree.send(self.shell.pid, signal.SIGKILL)
        while not self.dead:
            self.wait(None)
        return (None if timed_out else 128 + signal.SIGKILL), timed_out, fault

    def excess(self, found: dict[int, tree.Process]) -> bytes:
        """The limit that is overrun, for hosts where no control group watches it."""
        if not self.config.memory_bytes:
            return b""
        if len(found) >= self.config.processes:
            return b"process_limit"
        return b"out_of_memory" * (tree.memory_bytes(found, self.config.folders) > self.config.memory_bytes)

    # ---- plumbing

    def wait(self, timeout_s: float | None) -> set[int]:
        """Descriptors that have something, after reaping what died and pushing what is queued."""
        poller = select.poll()
        for fd in (self.control.fileno(), self.wake_r, self.shell.output, self.shell.status):
            poller.register(fd, select.POLLIN)
        if self.shell.pending:
            poller.register(self.shell.commands, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))}
        if self.wake_r in ready:
            os.read(self.wake_r, 4096)
            self.reap()
        self.shell.push()
        return ready

    def reap(self) -> None:
        """Collect every dead child; note how the shell ended, if it did."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if info.si_pid == self.shell.pid:
                became = tree.read(f"/proc/{info.si_pid}/comm")
                by_itself = info.si_code == os.CLD_EXITED and became == "bash\n"
                code = info.si_status if info.si_code == os.CLD_EXITED else 128 + info.si_status
                self.dead = code, "" if by_itself else "shell_killed"
            os.waitpid(info.si_pid, 0)

    def drain(self, output: Output, count: int) -> None:
        """Move up to `count` bytes of what was printed into `output`."""
        while count > 0:
            try:
                data = os.read(self.shell.output, min(count, 65536))
            except BlockingIOError:
                return
            if not data:
                return
            output.feed(data)
            count -= len(data)

    def bury(self, output: Output) -> None:
        """Start a new shell in place of a dead one; the next command says so."""
        self.shell.close()
        self.dead = None
        self.notes = NEW_SHELL_NOTE
        self.shell = Shell(self.config, self.cwd)

    def revive(self) -> None:
        """If the shell died between commands, replace it."""
        self.wait(0)
        if self.dead:
            self.bury(self.idle_output)

    def messages(self, timeout_s: float | None) -> list[list[bytes]]:
        """Whole messages from the host, waiting for at least one unless `timeout_s` is 0."""
        while True:
            found = []
            while (message := unpack(self.inbox)) is not None:
                found.append(message)
            if found:
                return found
            ready = self.wait(timeout_s)
            if self.shell.output in ready:
                self.drain(self.idle_output, 65536)
            if self.dead:
                self.bury(self.idle_output)
            if self.control.fileno() in ready:
                data = self.control.recv(65536)
                if not data:
                    raise HostGone
                self.inbox += data
            elif timeout_s == 0:
                return []

    def reply(self, sequence: bytes, fields: list[bytes]) -> None:
        """Send a whole message."""
        self.control.sendall(pack([sequence, *fields]))


def listen(control: _socket.socket, ports: list[int]) -> None:
    """Open loopback ports in the box's network and hand the listening sockets to the host."""
    for port in ports:
        server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        server.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(64)
        hand_over(control, server.fileno())
        server.close()


def hand_over(control: _socket.socket, fd: int) -> None:
    """Give the host a descriptor."""
    control.sendmsg([b"p"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))])


def main(control_fd: int) -> None:
    """Take the configuration, make the box ready, serve."""
    control = _socket.socket(fileno=control_fd)
    control.setblocking(True)
    inbox = bytearray()
    while (message := unpack(inbox)) is None:
        data = control.recv(65536)
        if not data:
            return
        inbox += data
    config = Config(message)
    for folder in config.folders:
        os.chown(folder, config.uid, config.gid)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY)
    hand_over(control, root)
    os.close(root)
    listen(control, config.ports)
    box = Box(control, config)
    control.sendall(pack([b"ready"]))
    try:
        box.serve()
    except (HostGone, ConnectionError):
        return
