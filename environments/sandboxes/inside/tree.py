"""The processes of a box, seen and ended from its process 1."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import resource
import time

SIGKILL: int = _signal.SIGKILL
SIGSTOP: int = _signal.SIGSTOP
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
END_S = 5.0


class Process:
    """One line of /proc/PID/stat: who, whose child, since when (clock ticks after boot), CPU seconds used."""

    __slots__ = ("cpu_s", "parent", "pid", "started", "state")

    def __init__(self, line: str) -> None:
        head, _, tail = line.rpartition(")")
        fields = tail.split()
        self.pid = int(head.split(" ", 1)[0])
        self.state = fields[0]
        self.parent = int(fields[1])
        self.started = int(fields[19])
        self.cpu_s = sum(int(x) for x in fields[11:15]) / TICKS_PER_S


def read(path: str) -> str | None:
    """A /proc file's text, None when its process is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, ProcessLookupError):
        return None


def processes() -> dict[int, Process]:
    """Every process of the box but process 1."""
    found = {}
    for name in os.listdir("/proc"):
        line = read(f"/proc/{name}/stat") if name.isdigit() and name != "1" else None
        if line:
            process = Process(line)
            found[process.pid] = process
    return found


def total_cpu_s(found: dict[int, Process]) -> float:
    """CPU seconds of all the box's processes, living and reaped, without process 1 itself."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return reaped.ru_utime + reaped.ru_stime + sum(p.cpu_s for p in found.values())


def memory_bytes(found: dict[int, Process], folders: list[str]) -> int:
    """Private memory of the processes plus the files in the box's memory-backed folders."""
    total = 0
    for pid in found:
        line = read(f"/proc/{pid}/statm")
        if line:
            fields = line.split()
            total += (int(fields[1]) - int(fields[2])) * PAGE_BYTES
    for folder in folders:
        space = os.statvfs(folder)
        total += (space.f_blocks - space.f_bfree) * space.f_frsize
    return total


def _newcomers(before: dict[int, int], keep: int) -> list[int]:
    """Processes not in `before` (pid -> start tick), unless an older process other than `keep` is their ancestor."""
    now = processes()

    def is_old(pid: int) -> bool:
        return pid in before and pid in now and now[pid].started == before[pid]

    def belongs_to_old(pid: int) -> bool:
        while pid in now and pid != keep:
            if is_old(pid):
                return True
            pid = now[pid].parent
        return False

    return [pid for pid, p in now.items() if pid != keep and p.state not in "ZX" and not belongs_to_old(pid)]


def send(pid: int, number: int) -> None:
    """Signal a process that may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def end_newcomers(before: dict[int, int], keep: int) -> None:
    """Kill all that started since `before`, however detached, but `keep`. Stopped first, so that none forks on."""
    give_up_at = time.monotonic() + END_S  # only a process stuck in the kernel lives that long
    while (alive := _newcomers(before, keep)) and time.monotonic() < give_up_at:
        for number in (SIGSTOP, SIGKILL):
            for pid in alive:
                send(pid, number)
        time.sleep(0.001)
