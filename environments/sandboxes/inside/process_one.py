"""Process 1 of a box: keeps the shell, ends trees, reaps orphans, and answers the host over one socket.

It is outside the agent's reach: the kernel drops signals that a process of the box sends to process 1, and it runs
as another user (where the host user is root) or hides from its own. It starts with every box, so it imports modules
in C only (`_signal`, not `signal`, which would load `enum` and `re`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import os
import select
import time

from . import tree
from .output import Output
from .shell import Config, Shell, set_dumpable
from .watch import Watch
from .wire import pack, unpack

WATCH_S = 0.02
IDLE_WATCH_S = 0.2
CHUNK_BYTES = 65_536
NEW_SHELL_NOTE = b"[a new shell was started: its variables, functions and settings are gone]\n"


class HostGone(Exception):
    """The host closed its end: the box must go too."""


class Box:
    """The state of process 1: the shell, where it stood, what is watched, what was asked and not yet done."""

    def __init__(self, control: _socket.socket, config: Config) -> None:
        self.control = control
        self.config = config
        self.watch = Watch(config.counters, config.processes, config.memory_bytes, config.folders)
        self.inbox = bytearray()
        self.requests: list[list[bytes]] = []
        self.before: dict[int, int] = {}
        self.busy = False  # whether anything but the shell runs between commands
        self.fault = ""  # the first thing that broke since the last answer
        self.cwd = config.workdir
        self.output = Output(config.output_bytes)
        self.dead: tuple[int, str] | None = None
        self.wake_fd = wake_on_dead_children()
        self.shell = Shell(config, self.cwd)

    # ---- one request after the other

    def serve(self) -> None:
        """Answer the host until it goes. A request is: run, its number, timeout in seconds, command."""
        while True:
            while not self.requests:
                self.idle()
            kind, number, *rest = self.requests.pop(0)
            if kind == b"run":  # an abort that comes too late has nothing to stop
                self.control.sendall(pack([number, *self.run(number, float(rest[0]), rest[1])]))

    def idle(self) -> None:
        """Wait for a request, keeping an eye on what was left running."""
        ready = self.wait(IDLE_WATCH_S if self.busy else None)
        if self.dead:
            self.replace_shell()
        if not ready:
            found = tree.processes()
            self.busy = len(found) > 1
            hit = self.watch.limit_hit(found)
            self.note(hit)
            if self.watch.must_stop(hit):
                tree.end_newcomers({}, self.shell.pid)

    def run(self, number: bytes, timeout_s: float, command: bytes) -> list[bytes]:
        """Run one command; the answer: exit code or nothing, timed out, truncated, fault, output."""
        self.wait(0)
        if self.dead:
            self.replace_shell()
        found = tree.processes()
        self.before = {pid: p.started for pid, p in found.items()}
        nonce = os.urandom(16).hex().encode()
        self.shell.start(command, nonce)
        cpu_end_s = tree.total_cpu_s(found) + self.config.cpu_s
        code, timed_out = self.follow(number, nonce, time.monotonic() + timeout_s, cpu_end_s)
        self.drain(self.shell.waiting_output())
        return [b"" if code is None else b"%d" % code, b"1" * timed_out, *self.close_answer()]

    def close_answer(self) -> list[bytes]:
        """Look once more at the limits, bury a dead shell, and hand out what was printed."""
        found = tree.processes()
        self.busy = len(found) > 1
        hit = self.watch.limit_hit(found)
        self.note(hit)
        if self.watch.must_stop(hit):
            tree.end_newcomers(self.before, self.shell.pid)
        if self.watch.disk_filled():
            self.note("disk_full")
        answer = [b"1" * self.output.truncated, b"", self.output.text()]
        self.output = Output(self.config.output_bytes)
        if self.dead:
            self.replace_shell()
        answer[1], self.fault = self.fault.encode(), ""
        return answer

    def follow(self, number: bytes, nonce: bytes, end: float, cpu_end_s: float) -> tuple[int | None, bool]:
        """Wait for the end of the command, whichever way it ends: (exit code, timed out)."""
        watch_at = time.monotonic() + WATCH_S
        while True:
            now = time.monotonic()
            if now >= end:
                return self.stop_command(timed_out=True)
            if now >= watch_at:
                watch_at = now + WATCH_S
                found = tree.processes()
                hit = self.watch.limit_hit(found)
                self.note(hit)
                if self.watch.must_stop(hit):
                    return self.stop_command(timed_out=False)
                if tree.total_cpu_s(found) > cpu_end_s:
                    return self.stop_command(timed_out=True)
            ready = self.wait(min(end, watch_at) - now)
            ended = self.shell.ended(nonce) if self.shell.status in ready else None
            if ended:
                self.cwd = ended[1]
                return ended[0], False
            if self.dead:
                return self.dead[0], False
            if [b"abort", number] in self.requests:
                return self.stop_command(timed_out=True)

    def stop_command(self, *, timed_out: bool) -> tuple[int | None, bool]:
        """End the command's whole tree, and the shell, which would go on with its next line."""
        tree.send(self.shell.pid, tree.SIGSTOP)
        tree.end_newcomers(self.before, self.shell.pid)
        tree.send(self.shell.pid, tree.SIGKILL)
        while not self.dead:
            self.wait(None)
        self.dead = 128 + tree.SIGKILL, ""  # our doing, no fault of the agent
        return (None if timed_out else self.dead[0]), timed_out

    def note(self, fault: str) -> None:
        """Remember what broke; the first cause counts."""
        self.fault = self.fault or fault

    # ---- plumbing

    def wait(self, timeout_s: float | None) -> set[int]:
        """Sleep until something comes, deal with it, and say which descriptors had it; none after `timeout_s`."""
        poller = select.poll()
        for fd in (self.control.fileno(), self.wake_fd, self.shell.output, self.shell.status):
            poller.register(fd, select.POLLIN)
        if self.shell.pending:
            poller.register(self.shell.commands, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))}
        if self.control.fileno() in ready:
            self.receive()
        if self.shell.output in ready:
            self.drain(CHUNK_BYTES)
        if self.wake_fd in ready:
            os.read(self.wake_fd, 4096)
            self.reap()
        self.shell.push()
        return ready

    def receive(self) -> None:
        """Queue the requests that have come whole."""
        data = self.control.recv(CHUNK_BYTES)
        if not data:
            raise HostGone
        self.inbox += data
        while (message := unpack(self.inbox)) is not None:
            self.requests.append(message)

    def drain(self, count: int) -> None:
        """Take up to `count` bytes of what was printed."""
        while count > 0:
            try:
                data = os.read(self.shell.output, min(count, CHUNK_BYTES))
            except BlockingIOError:
                return
            self.output.feed(data)
            count -= len(data) or count

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
                self.dead = how_it_ended(info)
            os.waitpid(info.si_pid, 0)

    def replace_shell(self) -> None:
        """Start a new shell in place of a dead one; the next command's output says so."""
        if self.dead:
            self.note(self.dead[1])
        self.shell.close()
        self.dead = None
        self.output.feed(NEW_SHELL_NOTE)
        self.shell = Shell(self.config, self.cwd)


def wake_on_dead_children() -> int:
    """A descriptor that becomes readable when a child has died."""
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w):
        os.set_blocking(fd, False)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
    return wake_r


def how_it_ended(info: os.waitid_result) -> tuple[int, str]:
    """(exit code, fault) of a dead shell: `exit 3` is no fault; a signal, or another program in its place, is."""
    if info.si_code != os.CLD_EXITED:
        return 128 + info.si_status, "shell_killed"
    name = tree.read(f"/proc/{info.si_pid}/comm")
    return info.si_status, "" if name == "bash\n" else "shell_killed"


def hand_over(control: _socket.socket, fd: int) -> None:
    """Give the host a descriptor."""
    control.sendmsg([b"p"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))])


def listen(control: _socket.socket, ports: list[int]) -> None:
    """Open loopback ports in the box's network and hand the listening sockets to the host."""
    for port in ports:
        server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        server.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen(64)
        hand_over(control, server.fileno())
        server.close()


def main(control_fd: int) -> None:
    """Take the configuration, make the box ready, serve."""
    control = _socket.socket(fileno=control_fd)
    inbox = bytearray()
    while (message := unpack(inbox)) is None:
        data = control.recv(CHUNK_BYTES)
        if not data:
            return
        inbox += data
    config = Config(message)
    if os.getuid() == config.uid:
        set_dumpable(False)
    for folder in config.folders:
        os.chown(folder, config.uid, config.uid)
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
