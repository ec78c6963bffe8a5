"""What the agent did to its box: memory, processes, disk. Seen by the kernel's counters, or by looking around."""

from __future__ import annotations

import os

from . import tree

MAX_COUNTER_BYTES = 4096


class Counter:
    """One number of a control group file such as `oom_kill 3`; `file` is a path, or a descriptor from the host."""

    def __init__(self, file: str, key: str) -> None:
        self._fd = int(file) if file.isdigit() else os.open(file, os.O_RDONLY)
        self._key = key
        self._seen = self._read()

    def _read(self) -> int:
        fields = os.pread(self._fd, MAX_COUNTER_BYTES, 0).decode().split()
        return int(fields[fields.index(self._key) + 1]) if self._key in fields else 0

    def rose(self) -> bool:
        """Whether it is higher than at the last call."""
        before, self._seen = self._seen, self._read()
        return self._seen > before


class Watch:
    """Finds limits that were hit since it last looked.

    With a control group the kernel has refused the fork or killed the hog already; without one, the box is measured
    and whoever is over the limit must be stopped.
    """

    def __init__(self, counters: list[str], max_processes: int, max_bytes: int, folders: list[str]) -> None:
        self._counters = {}
        if counters:
            memory, processes = counters
            self._counters = {"out_of_memory": Counter(memory, "oom_kill"), "process_limit": Counter(processes, "max")}
        self._max_processes = max_processes
        self._max_bytes = max_bytes
        self._folders = folders
        self._full: set[str] = set()

    def limit_hit(self, found: dict[int, tree.Process]) -> str:
        """'out_of_memory', 'process_limit' or nothing."""
        if self._counters:
            return next((fault for fault, counter in self._counters.items() if counter.rose()), "")
        if tree.memory_bytes(found, self._folders) > self._max_bytes:
            return "out_of_memory"
        return "process_limit" if len(found) >= self._max_processes else ""

    def must_stop(self, fault: str) -> bool:
        """Whether the culprit still runs: the kernel has killed a hog, but nobody a fork bomb."""
        return fault == "process_limit" or (fault == "out_of_memory" and not self._counters)

    def disk_filled(self) -> bool:
        """Whether a folder that had room when last asked has none now."""
        before, self._full = self._full, {f for f in self._folders if os.statvfs(f).f_bavail == 0}
        return bool(self._full - before)
