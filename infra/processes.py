"""Child processes that end with all their descendants: own session, SIGTERM, grace, SIGKILL to the whole group."""

from __future__ import annotations

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

_POLL_S = 0.25
_LONGEST_LINE = 1 << 20


class ProcessError(RuntimeError):
    """A child could not be started. Says the command, the cause and the mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnd:
    """How a child ended. `exit_code` is negative (-N) when signal N killed it.

    'timed_out': it ran past `timeout_s`. 'silent': it printed nothing for `silence_s`. Both were stopped by us.
    """

    ending: Ending
    exit_code: int
    duration_s: float


@contextmanager
def child_group(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    grace_s: float = 5.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A child in its own session, its stdout and stderr in one pipe (`stdout`), stopped with its kin at the end.

    `env` replaces the whole environment when given. Raises ProcessError when it cannot start.
    """
    try:
        child = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise ProcessError(f"cannot start {command[0]!r}: {error}; install it, or mend the path or folder") from error
    try:
        yield child
    finally:
        stop_group(child, grace_s=grace_s)
        if child.stdout is not None:
            child.stdout.close()


def stop_group(child: subprocess.Popen[bytes], *, grace_s: float = 5.0) -> int:
    """End a child of `child_group` and all its descendants: SIGTERM, up to `grace_s` seconds, then SIGKILL.

    Descendants that moved to a session of their own are found by their parents while those live. Returns the
    child's exit code; idempotent.
    """
    kin = _descendants(child.pid)
    _signal_group(child.pid, signal.SIGTERM)
    _signal_each(kin, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and (child.poll() is None or _group_lives(child.pid) or _living(kin)):
        time.sleep(0.01)
    kin = [*kin, *_descendants(child.pid)]
    _signal_group(child.pid, signal.SIGKILL)
    _signal_each(kin, signal.SIGKILL)
    return child.wait()


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _living(kin: Sequence[psutil.Process]) -> bool:
    return any(p.is_running() and _status(p) != psutil.STATUS_ZOMBIE for p in kin)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def _group_lives(group: int) -> bool:
    """Whether a process of the group still runs; its zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return any(_in_group(p, group) for p in psutil.process_iter())


def _in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and _status(process) != psutil.STATUS_ZOMBIE
    except ProcessLookupError:
        return False


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # already gone, which is what is wanted


def _signal_each(kin: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in kin:
        try:
            process.send_signal(number)  # psutil refuses when the pid now belongs to another process
        except psutil.NoSuchProcess:
            continue


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

    The run is over when the child itself has ended: what it left behind is then stopped, whether or not it holds
    the pipe. `on_heartbeat(elapsed_s)` is called every `heartbeat_s`. What a callback raises stops the child and
    escapes. Raises ProcessError when the child cannot start.
    """
    started = heard = beat = time.monotonic()
    ending: Ending = "exited"
    with child_group(command, cwd=cwd, env=env, grace_s=grace_s) as child:
        lines = _Lines(child)
        while True:
            now = time.monotonic()
            arrived = lines.read(_POLL_S)
            for line in arrived:
                on_line(line)
            heard = now if arrived else heard
            if child.poll() is not None:
                break
            if timeout_s is not None and now - started > timeout_s:
                ending = "timed_out"
                break
            if silence_s is not None and now - heard > silence_s:
                ending = "silent"
                break
            if on_heartbeat is not None and now - beat > heartbeat_s:
                on_heartbeat(now - started)
                beat = now
        exit_code = stop_group(child, grace_s=grace_s if ending != "exited" else 0.0)
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
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._descriptor, selectors.EVENT_READ)
        self._pending = b""
        self._open = True

    def read(self, wait_s: float) -> list[str]:
        """The lines that arrive within `wait_s`, at once when there are some."""
        if not self._open:
            time.sleep(wait_s)  # the child closed its output and works on
            return []
        self._selector.select(wait_s)
        return self._take()

    def rest(self) -> list[str]:
        """All that is still in the pipe, the last line also when no line end follows it."""
        lines = self._take()
        while self._open and (more := self._take()):
            lines += more
        if self._pending:
            lines.append(self._pending.decode(errors="replace"))
            self._pending = b""
        self._selector.close()
        return lines

    def _take(self) -> list[str]:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            self._open = False
            self._selector.unregister(self._descriptor)
        *whole, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > _LONGEST_LINE:  # a child that prints no line ends must not fill our memory
            whole, self._pending = [*whole, self._pending], b""
        return [line.decode(errors="replace") for line in whole]
