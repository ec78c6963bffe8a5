"""The kept shell: a bash that reads framed commands and reports their end on a descriptor of its own."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import resource

COMMANDS_FD, STATUS_FD, OUTPUT_FD = 250, 251, 252
MAX_STATUS_BYTES = 8192
HEADROOM = 8  # process 1 may count too, and the watcher must see the limit reached to say so


class Config:
    """What process 1 is told at the start (see `BubblewrapProvider`). `counters`: files of a control group."""

    def __init__(self, fields: list[bytes]) -> None:
        texts = [f.decode() for f in fields]
        self.uid, self.processes, self.memory_bytes, self.output_bytes = (int(t) for t in texts[:4])
        self.cpu_s = float(texts[4])
        self.workdir = texts[5]
        self.folders = texts[6].split("\0")
        self.ports = [int(p) for p in texts[7].split()]
        self.counters = [c for c in texts[8].split("\0") if c]
        self.env = dict(entry.split("=", 1) for entry in texts[9].split("\0"))
        self.driver = texts[10]


class Shell:
    """One bash process and our ends of its three pipes."""

    def __init__(self, config: Config, cwd: str) -> None:
        commands_r, self.commands = os.pipe()
        self.status, status_w = os.pipe()
        self.output, output_w = os.pipe()
        os.fchown(output_w, config.uid, config.uid)  # so that the agent may open /dev/stdout; the others stay shut
        self.pending = bytearray()
        self._statuses = bytearray()
        self.pid = os.fork()
        if self.pid == 0:
            _become_shell(config, cwd, (commands_r, status_w, output_w))
        for fd in (commands_r, status_w, output_w):
            os.close(fd)
        for fd in (self.commands, self.status, self.output):
            os.set_blocking(fd, False)

    def start(self, command: bytes, nonce: bytes) -> None:
        """Queue a command; `push` hands it over as the pipe takes it."""
        self.pending += b"%-11d" % len(command) + command + nonce
        self.push()

    def push(self) -> None:
        """Write what the pipe will take. A shell that reads no more is found dead elsewhere."""
        try:
            while self.pending:
                del self.pending[: os.write(self.commands, self.pending[:65536])]
        except (BlockingIOError, BrokenPipeError):
            return

    def ended(self, nonce: bytes) -> tuple[int, str] | None:
        """(exit code, working directory) if the command with this nonce has ended; all else there is dropped."""
        try:
            self._statuses += os.read(self.status, MAX_STATUS_BYTES)
        except BlockingIOError:
            return None
        found = None
        while b"\0" in self._statuses:
            line, _, rest = bytes(self._statuses).partition(b"\0")
            self._statuses = bytearray(rest)
            parts = line.split(b" ", 2)
            if len(parts) == 3 and parts[0] == nonce and parts[1].isdigit():
                found = int(parts[1]), parts[2].decode("utf-8", "surrogateescape")
        del self._statuses[:-MAX_STATUS_BYTES]
        return found

    def waiting_output(self) -> int:
        """Bytes printed and not yet read."""
        return int.from_bytes(fcntl.ioctl(self.output, 0x541B, b"\0" * 4), "little")  # FIONREAD

    def close(self) -> None:
        """Close our ends."""
        for fd in (self.commands, self.status, self.output):
            os.close(fd)


def _become_shell(config: Config, cwd: str, fds: tuple[int, int, int]) -> None:
    for source, target in zip(fds, (COMMANDS_FD, STATUS_FD, OUTPUT_FD)):  # noqa: B905 - runs on any Python 3
        os.dup2(source, target)
    null = os.open("/dev/null", os.O_RDWR)
    for source, target in ((_filled_pipe(config.driver.encode()), 0), (null, 1), (null, 2)):
        os.dup2(source, target)
    os.closerange(3, COMMANDS_FD)
    os.closerange(OUTPUT_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.setpgid(0, 0)
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGPIPE, _signal.SIGCHLD):
        _signal.signal(number, _signal.SIG_DFL)
    if os.getuid() == config.uid:
        set_dumpable(True)  # process 1 hides from its own user; the shell need not, and could not write the next file
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("1000")  # the kernel picks the agent's processes before process 1
    if os.getuid() != config.uid:
        os.setgroups([])
        os.setresgid(config.uid, config.uid, config.uid)
        os.setresuid(config.uid, config.uid, config.uid)
    _limit(config)
    try:
        os.chdir(cwd)
    except OSError:
        os.chdir(config.workdir)
    os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], config.env)


def _filled_pipe(data: bytes) -> int:
    """A descriptor that reads as `data`, which must fit a pipe (4 KiB at least)."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, data)
    os.close(write_fd)
    return read_fd


def _limit(config: Config) -> None:
    cpu_s = max(1, round(config.cpu_s))
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_CPU: cpu_s}
    if not config.counters:
        limits[resource.RLIMIT_NPROC] = config.processes + HEADROOM
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def set_dumpable(value: bool) -> None:
    """Whether processes of the same user may look into or trace this one (prctl PR_SET_DUMPABLE)."""
    import ctypes  # only where the host user is not root: it slows the start

    ctypes.CDLL(None).prctl(4, int(value), 0, 0, 0)
