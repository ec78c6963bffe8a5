"""Control groups of boxes: memory and process limits the kernel holds over a whole tree (cgroup v1 and v2).

Groups are made below our own group (v1, or a delegated v2 group) or beside it (v2, where a group with processes
cannot have children), so the limits that hold for us hold for the boxes too. Where neither can be written,
`find_parents` returns nothing and the box's process 1 watches memory and processes by itself.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from environments.sandboxes.base import BoxLimits, SandboxError

PREFIX = "longbreath-"
OWN_PROCESSES = 2  # bwrap and process 1
OWN_MEMORY_BYTES = 24 * 2**20  # process 1's interpreter
REMOVE_TRIES = 200
_numbers = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Parents:
    """Folders in which groups may be made; with v2 both are the same folder."""

    memory: Path
    processes: Path
    v2: bool


def find_parents() -> Parents | None:
    """Where this process may make groups with memory and process limits; None where it may not."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            own[name] = path
    mounts = _mounts()
    if "memory" in own and "pids" in own and {"memory", "pids"} <= mounts.keys():
        v1 = Parents(
            memory=mounts["memory"] / own["memory"].lstrip("/"),
            processes=mounts["pids"] / own["pids"].lstrip("/"),
            v2=False,
        )
        return v1 if _usable(v1) else None
    if "" in own and "" in mounts:
        group = mounts[""] / own[""].lstrip("/")
        for folder in (group, group.parent):
            v2 = Parents(memory=folder, processes=folder, v2=True)
            if _usable(v2):
                return v2
    return None


def _mounts() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup2":
            found[""] = Path(folder)
        elif kind == "cgroup":
            found |= {name: Path(folder) for name in ("memory", "pids") if name in options.split(",")}
    return found


def _usable(parents: Parents) -> bool:
    """Try it: only making a group shows whether its limits are there."""
    try:
        group = ControlGroup(parents, f"{PREFIX}probe-{os.getpid()}-{time.monotonic_ns()}", BoxLimits())
    except OSError:
        return False
    group.remove()
    return True


class ControlGroup:
    """The group of one box. Raises OSError when it cannot be made."""

    def __init__(self, parents: Parents, name: str, limits: BoxLimits) -> None:
        self._v2 = parents.v2
        self._memory, self._processes = parents.memory / name, parents.processes / name
        for folder in self._folders:
            folder.mkdir()
        try:
            (self._processes / "pids.max").write_text(str(limits.processes + OWN_PROCESSES))
            self._limit_memory(limits.memory_mb * 2**20 + OWN_MEMORY_BYTES)
        except OSError:
            self.remove()
            raise

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self._memory,) if self._v2 else (self._memory, self._processes)

    @property
    def entries(self) -> tuple[str, ...]:
        """Files into which a process writes 0 to enter the group."""
        return tuple(str(folder / "cgroup.procs") for folder in self._folders)

    @property
    def counters(self) -> tuple[Path, Path]:
        """Files that count `oom_kill` and refused forks (`max`)."""
        memory = "memory.events" if self._v2 else "memory.oom_control"
        return self._memory / memory, self._processes / "pids.events"

    def _limit_memory(self, memory_bytes: int) -> None:
        if self._v2:
            (self._memory / "memory.max").write_text(str(memory_bytes))
            _write_if_there(self._memory / "memory.swap.max", "0")
            return
        (self._memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
        _write_if_there(self._memory / "memory.memsw.limit_in_bytes", str(memory_bytes))

    def had_oom_kill(self) -> bool:
        """Whether the kernel ever killed a process of the group for memory."""
        fields = self.counters[0].read_text().split()
        return fields[fields.index("oom_kill") + 1] != "0"

    def remove(self) -> None:
        """Kill what is left in the group and remove it. Raises SandboxError when it does not go away."""
        for folder in self._folders:
            remove_group(folder)


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def remove_group(folder: Path) -> None:
    """Kill the processes of a group, wait for them, remove it. Raises SandboxError when it stays busy."""
    for _ in range(REMOVE_TRIES):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            for pid in (folder / "cgroup.procs").read_text().split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.005)
        else:
            return
    raise SandboxError(f"control group {folder} is still busy after a kill; look for stuck processes in cgroup.procs")


def start_tick(pid: int) -> int | None:
    """When a process started (clock ticks after boot), None when there is none: with the pid it names a process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def new_box_name() -> str:
    """`longbreath-PID-TICK-NUMBER`: unique on this host, and tells whether its owner still lives."""
    return f"{PREFIX}{os.getpid()}-{start_tick(os.getpid())}-{next(_numbers)}"


def sweep(parents: Parents) -> set[str]:
    """Remove the groups whose owner is dead; their names."""
    names = set()
    for folder in {parents.memory, parents.processes}:
        for group in folder.glob(f"{PREFIX}*-*-*"):
            if is_orphan(group.name):
                remove_group(group)
                names.add(group.name)
    return names


def is_orphan(name: str) -> bool:
    """Whether the process that made the box `longbreath-PID-TICK-NUMBER` is dead."""
    parts = name.split("-")
    return len(parts) == 4 and parts[1].isdigit() and str(start_tick(int(parts[1]))) != parts[2]
