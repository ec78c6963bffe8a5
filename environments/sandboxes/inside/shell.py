"""The kept shell: a bash that reads framed commands and reports their end on a descriptor of its own."""

from __future__ import annotations

import fcntl
import os
import resource
import signal

COMMANDS_FD, STATUS_FD, OUTPUT_FD = 250, 251, 252
MAX_STATUS_BYTES = 8192


class Config:
    """What process 1 is told at the start (see `host_config` in the provider)."""

    def __init__(self, fields: list[bytes]) -> None:
        texts = [f.decode() for f in fields]
        self.uid, self.gid, self.processes, self.output_bytes, self.memory_bytes = (int(t) for t in texts[:5])
        self.cpu_s = float(texts[5])
        self.workdir = texts[6]
        self.folders = texts[7].split("\0")
        self.ports = [int(p) for p in texts[8].split()]
        self.env = dict(entry.split("=", 1) for entry in texts[9].split("\0"))


class Shell:
    """One bash process and our ends of its three pipes."""

    def __init__(self, config: Config, cwd: str) -> None:
        commands_r, self.commands = os.pipe()
        self.status, status_w = os.pipe()
        self.output, output_w = os.pipe()
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
    for source, target in zip(fds, (COMMANDS_FD, STATUS_FD, OUTPUT_FD), strict=True):
        os.dup2(source, target)
    null = os.open("/dev/null", os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(null, target)
    os.closerange(3, COMMANDS_FD)
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write("1000")
    if os.getuid() != config.uid:
        os.setgroups([])
        os.setresgid(config.gid, config.gid, config.gid)
        os.setresuid(config.uid, config.uid, config.uid)
    resource.setrlimit(resource.RLIMIT_NPROC, (config.processes, config.processes))
    cpu_s = max(1, round(config.cpu_s))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        os.chdir(cwd)
    except OSError:
        os.chdir(config.workdir)
    os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "/run/longbreath/driver.sh"], config.env)
