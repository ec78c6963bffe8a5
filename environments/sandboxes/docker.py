"""Boxes by a Docker engine (or Podman's service): the same process 1 and kept shell in a container without network.

The engine must run on this host and share its file system: process 1 meets us on a unix socket in a folder bound
into the container. The image needs bash and Python 3.9 or later, nothing else.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.sandboxes.base import Sandbox, SandboxError, SandboxSpec
from environments.sandboxes.control_groups import OWN_MEMORY_BYTES, PREFIX, is_orphan, new_box_name
from environments.sandboxes.interpreter import BOX_PATH, PACKAGE
from environments.sandboxes.meeting import accounts, configuration, meet, writable_folders
from environments.sandboxes.spec_check import check

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container

LABEL = "longbreath.box"
LIBRARY, DOOR = "/run/longbreath", "/run/door"
FIRST_UID = 1_000_000_000  # above any account; our process id is added
OWN_PROCESSES = 1  # process 1
SHM_BYTES = 16 * 2**20
CONNECT_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
TRUSTED_CAPABILITIES = ["CHOWN", "KILL", "SETGID", "SETUID"]  # of process 1, gone in the shell
BOOT = (
    "import sys, _socket; sys.path.insert(0, sys.argv[1]); s = _socket.socket(_socket.AF_UNIX); s.connect(sys.argv[2]);"
    "from inside.process_one import main; main(s.detach())"
)
COUNTERS = {
    "1": ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/pids/pids.events"),
    "2": ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/pids.events"),
}
ENGINE_HINT = "start it (`systemctl start docker`) or say where it is (DOCKER_HOST=unix:///path/docker.sock)"


@contextmanager
def _engine_errors() -> Iterator[None]:
    """An engine that fails us, or stops answering, is the host's fault."""
    import docker
    import requests

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise SandboxError(f"the Docker engine failed: {error}; {ENGINE_HINT}") from error


@dataclass(frozen=True, slots=True)
class _Host:
    """A container and the folder it met us in; a `BoxHost`."""

    container: Container
    folder: Path

    def complaints(self) -> str:
        """The end of the container's log."""
        with _engine_errors():
            return self.container.logs(tail=20).decode("utf-8", "replace").strip()

    def ran_out_of_memory(self) -> bool:
        """Whether the engine saw the kernel kill for memory; it knows once the container has ended."""
        with _engine_errors():
            self.container.wait(timeout=END_TIMEOUT_S)
            self.container.reload()
            return bool(self.container.attrs["State"]["OOMKilled"])

    def end(self) -> None:
        """Kill and remove the container, its process namespace and its folder with it."""
        with _engine_errors():
            self.container.remove(force=True, v=True)
        shutil.rmtree(self.folder)


class DockerProvider:
    """Makes boxes as containers of `image` on the engine at `base_url` (None: as the environment says)."""

    name = "docker"
    not_covered: tuple[str, ...] = (
        "the host's kernel is shared, behind the engine's default system call filter",
        "whoever may speak to the engine is root on the host: the boxes are not told where it is, our process is",
        "CPU: a command is ended when its whole tree has used cpu_s, but shares are not divided between boxes",
        "disk_mb holds for workdir, /tmp and the home each; files live in memory and count against memory_mb",
        "an engine on another host, in a virtual machine of its own, or with remapped user ids does not work",
    )

    def __init__(self, *, image: str, base_url: str | None = None) -> None:
        self._image = image
        self._base_url = base_url
        self._client: docker.DockerClient | None = None
        self._is_root = os.geteuid() == 0
        self._uid = FIRST_UID + os.getpid() if self._is_root else os.getuid()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A fresh box, ready for its first command. Raises SandboxError with the mend when the engine cannot."""
        check(spec, own_uids=self._is_root)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            version = await asyncio.to_thread(self._cgroup_version)
            with _door(folder) as door:
                self._furnish(folder)
                host = await asyncio.to_thread(self._run, spec, folder)
                control = await _visitor(door, host)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        config = configuration(spec, uid=self._uid, search_path=BOX_PATH, counters=COUNTERS[version])
        owner = (self._uid, self._uid) if self._is_root else None
        return await meet(spec, control, host, config, owner=owner, hint=f"look into the image {self._image}")

    async def sweep(self) -> int:
        """Remove containers whose owner process is dead."""
        return await asyncio.to_thread(self._sweep)

    def _sweep(self) -> int:
        with _engine_errors():
            found = self._engine().containers.list(all=True, filters={"label": LABEL})
            orphans = [c for c in found if c.name and is_orphan(c.name)]
            for container in orphans:
                container.remove(force=True, v=True)
        return len(orphans)

    def _engine(self) -> docker.DockerClient:
        import docker  # seconds of imports, and only for those who use it

        if self._client is None:
            try:
                self._client = docker.DockerClient(base_url=self._base_url) if self._base_url else docker.from_env()
                self._client.ping()
            except docker.errors.DockerException as error:
                self._client = None
                raise SandboxError(f"no Docker engine answers: {error}; {ENGINE_HINT}") from error
        return self._client

    def _cgroup_version(self) -> str:
        with _engine_errors():
            return str(self._engine().info()["CgroupVersion"])

    def _furnish(self, folder: Path) -> None:
        """Put process 1's program and the account files where the container will see them."""
        (folder / "library" / "inside").mkdir(parents=True)
        for source in PACKAGE.glob("*.py"):
            (folder / "library" / "inside" / source.name).write_bytes(source.read_bytes())
        for path, data in accounts(self._uid).items():
            (folder / Path(path).name).write_bytes(data)

    def _run(self, spec: SandboxSpec, folder: Path) -> _Host:
        import docker

        name = new_box_name()
        try:
            container = self._engine().containers.create(self._image, **self._options(spec, folder, name))
            container.start()
        except docker.errors.ImageNotFound as error:
            raise SandboxError(f"no image {self._image!r} here; build or pull it first (docker pull)") from error
        except docker.errors.APIError as error:
            self._remove(name)
            raise SandboxError(f"the engine refused box {spec.label!r}: {error.explanation or error}") from error
        return _Host(container, folder)

    def _remove(self, name: str) -> None:
        """Remove a container that was made and did not start, if it was."""
        for container in self._engine().containers.list(all=True, filters={"name": name}):
            container.remove(force=True, v=True)

    def _options(self, spec: SandboxSpec, folder: Path, name: str) -> dict[str, Any]:
        memory_bytes = spec.limits.memory_mb * 2**20 + OWN_MEMORY_BYTES
        binds = {str(folder / Path(path).name): path for path in accounts(self._uid)}
        binds |= {str(folder / "library"): LIBRARY} | {str(m.host.resolve()): m.box for m in spec.mounts}
        mode = f"size={spec.limits.disk_mb}m,mode=755,exec,uid={self._uid},gid={self._uid}"
        return {
            "name": name,
            "labels": {LABEL: spec.label},
            "entrypoint": ["python3", "-SEsB", "-c", BOOT, LIBRARY, f"{DOOR}/control"],
            "user": "0:0" if self._is_root else f"{self._uid}:{os.getgid()}",
            "cap_drop": ["ALL"],
            "cap_add": TRUSTED_CAPABILITIES if self._is_root else [],
            "security_opt": ["no-new-privileges"],
            "network_mode": "none",
            "ipc_mode": "private",
            "hostname": "box",
            "read_only": True,
            "working_dir": "/",
            "mem_limit": memory_bytes,
            "memswap_limit": memory_bytes,
            "pids_limit": spec.limits.processes + OWN_PROCESSES,
            "shm_size": SHM_BYTES,
            "tmpfs": dict.fromkeys(writable_folders(spec), mode),
            "volumes": {
                **{host: {"bind": box, "mode": "ro"} for host, box in binds.items()},
                str(folder / "door"): {"bind": DOOR, "mode": "ro"},
            },
        }


def _door(folder: Path) -> socket.socket:
    """A listening socket that process 1 will connect to; its folder is nobody else's."""
    (folder / "door").mkdir(mode=0o700)
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(folder / "door" / "control"))
    door.listen(1)
    door.setblocking(False)
    return door


async def _visitor(door: socket.socket, host: _Host) -> socket.socket:
    """Process 1's connection; afterwards the door is gone. Ends the container if nobody comes."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            control, _ = await asyncio.get_running_loop().sock_accept(door)
    except BaseException as error:
        said = await asyncio.to_thread(host.complaints)
        await asyncio.to_thread(host.end)
        if isinstance(error, TimeoutError):
            raise SandboxError(
                f"process 1 did not come up within {CONNECT_TIMEOUT_S:.0f} s: {said}; the image needs python3 and bash"
            ) from error
        raise
    (host.folder / "door" / "control").unlink()
    return control
