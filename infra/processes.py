"""Child processes that end with all their descendants: own session, SIGTERM, grace, then SIGKILL to every one.

Descendants are known by their process group and, so that one which made a session of its own is found too, by a
mark in the environment that they inherit (read from /proc: Linux). Not covered: a descendant that leaves the group
and also clears its environment, or that runs as another user.
"""

from __future__ import annotations

import itertools
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

Ending = Literal["exited", "timed_out", "silent"]

_MARK = "LONGBREATH_CHILD"
_POLL_S = 0.25
_KILL_S = 30.0
_LONGEST_LINE = 1 << 20
_numbers = itertools.count()


class ProcessError(RuntimeError):
    """A child could not be started, or not be ended. Says which, the cause and the mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a child ended. `exit_code` is negative (-N) when signal N killed it.

    'timed_out': it ran past `timeout_s`. 'silent': it printed nothing for `silence_s`. Both were stopped by us.
    """

    ending: Ending
    exit_code: int
    duration_s: float


class ChildGroup:
    """A child in its own session with stdout and stderr in one pipe (`popen.stdout`). Made by `child_group`."""

    def __init__(self, command: Sequence[str], *, cwd: Path | None, env: Mapping[str, str] | None) -> None:
        mark = f"{os.getpid()}.{time.time_ns()}.{next(_numbers)}"
        self._mark = mark.encode()
        marks = f"{os.environ.get(_MARK, '')}/{mark}"  # ours too: who stops us must find our children's children
        try:
            self.popen = subprocess.Popen(
                list(command),
                cwd=cwd,
                env={**(os.environ if env is None else env), _MARK: marks},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ProcessError(f"cannot start {command[0]!r}: {error}; install it, or mend the path") from error

    def stop(self, *, grace_s: float = 5.0) -> int:
        """SIGTERM to all, up to `grace_s` seconds, then SIGKILL. Returns the child's exit code; idempotent.

        Raises ProcessError when some do not die (stuck in the kernel).
        """
        self._signal_all(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.living() and time.monotonic() < deadline:
            self.popen.poll()  # reaps the child, so that it does not count as living
            time.sleep(0.02)
        deadline = time.monotonic() + _KILL_S
        while left := self.living():  # again and again: one that was forking is caught on the next round
            if time.monotonic() > deadline:
                raise ProcessError(f"processes {left} do not die {_KILL_S:.0f} s after SIGKILL; see `ps -o stat,wchan`")
            self._signal_all(signal.SIGKILL)
            time.sleep(0.005)
        return self.popen.wait()

    def living(self) -> list[int]:
        """The pids of the child and its descendants that still run (zombies do not)."""
        return [pid for pid in psutil.pids() if self._is_ours(pid) and not _is_zombie(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            if os.getpgid(pid) == self.popen.pid and self._owns_group():
                return True
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            return False  # gone by now, or another user's
        return any(entry.startswith(f"{_MARK}=".encode()) and self._mark in entry.split(b"/") for entry in entries)

    def _owns_group(self) -> bool:
        """Once the child is reaped its number may go to a stranger: then the number exists as a process again."""
        return self.popen.returncode is None or not psutil.pid_exists(self.popen.pid)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.living():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue  # gone by itself, which is what is wanted


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def child_group(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = 5.0,
) -> Iterator[ChildGroup]:
    """A child that is stopped with all its descendants at the end of the block, however that ends.

    `env` replaces the whole environment when given. Raises ProcessError when it cannot start.
    """
    child = ChildGroup(command, cwd=cwd, env=env)
    try:
        yield child
    finally:
        child.stop(grace_s=grace_s)
        if child.popen.stdout is not None:
            child.popen.stdout.close()


def run_streaming(
    command: Sequence[str],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    silence_s: float | None = None,
    on_heartbeat: Callable[[float], None] | None = None,
    heartbeat_s: float = 30.0,
    grace_s: float = 5.0,
) -> ProcessEnd:
    """Run a child to its end, handing each line of its output (no line end) to `on_line` as it comes.

    The run is over when the child itself has ended: what it left behind is then stopped, whether or not that holds
    the pipe. `on_heartbeat(elapsed_s)` is called every `heartbeat_s`. What a callback raises stops the child and
    escapes. Raises ProcessError when the child cannot start.
    """
    started = heard = beat = time.monotonic()
    ending: Ending = "exited"
    with child_group(command, cwd=cwd, env=env, grace_s=grace_s) as child:
        lines = _Lines(child.popen)
        while child.popen.poll() is None:
            arrived = lines.read(_POLL_S)
            for line in arrived:
                on_line(line)
            now = time.monotonic()
            heard = now if arrived else heard
            if timeout_s is not None and now - started > timeout_s:
                ending = "timed_out"
                break
            if silence_s is not None and now - heard > silence_s:
                ending = "silent"
                break
            if on_heartbeat is not None and now - beat > heartbeat_s:
                on_heartbeat(now - started)
                beat = now
        exit_code = child.stop(grace_s=grace_s)
        for line in lines.rest():
            on_line(line)
    return ProcessEnd(ending=ending, exit_code=exit_code, duration_s=time.monotonic() - started)


class _Lines:
    """Lines out of a child's pipe without ever blocking on it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdout is None:
            raise ProcessError("the child has no stdout pipe; start it with child_group")
        self._descriptor = child.stdout.fileno()
        os.set_blocking(self._descriptor, False)
        self._pending = b""
        self._open = True

    def read(self, wait_s: float) -> list[str]:
        """The lines that arrive within `wait_s`, at once when there are some."""
        if not self._open:
            time.sleep(wait_s)  # the child closed its output and works on
            return []
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            selector.select(wait_s)
        return self._take() or []

    def rest(self) -> list[str]:
        """All that is still in the pipe, the last line also when no line end follows it."""
        lines: list[str] = []
        while self._open and (taken := self._take()) is not None:
            lines += taken
        if self._pending:
            lines.append(self._pending.decode(errors="replace"))
            self._pending = b""
        return lines

    def _take(self) -> list[str] | None:
        """The whole lines of one read; None when nothing waits in the pipe."""
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return None
        self._open = bool(data)
        *whole, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _LONGEST_LINE:  # a child that prints no line ends must not fill our memory
            whole, self._pending = [*whole, self._pending], b""
        return [line.decode(errors="replace") for line in whole]
