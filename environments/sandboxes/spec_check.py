"""A spec that cannot become a box is refused before anything is made."""

from __future__ import annotations

from environments.sandboxes.base import SandboxError, SandboxSpec

HOST_FOLDERS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "etc", "dev", "proc", "run")
OTHERS_READ, OTHERS_ENTER = 0o004, 0o001


def check(spec: SandboxSpec, *, own_uids: bool) -> None:
    """Raises ValueError for a spec that is wrong anywhere, SandboxError for one that is wrong on this host."""
    for name in ("memory_mb", "processes", "disk_mb", "output_bytes", "cpu_s"):
        if getattr(spec.limits, name) <= 0:
            raise ValueError(f"limits.{name} is {getattr(spec.limits, name)}; want a positive number")
    top = spec.workdir.strip("/").split("/")[0]
    if not spec.workdir.startswith("/") or top in ("", *HOST_FOLDERS):
        raise ValueError(f"workdir is {spec.workdir!r}; want an absolute path outside {', '.join(HOST_FOLDERS)}")
    for key, value in spec.env:
        if "=" in key or "\0" in key + value or not key:
            raise ValueError(f"env entry {key!r} is no name of a variable, or holds a NUL byte")
    for exposed in spec.exposed:
        if not 1024 <= exposed.port <= 65535:
            raise ValueError(f"exposed port is {exposed.port}; want 1024 to 65535")
    _check_mounts(spec, own_uids)


def _check_mounts(spec: SandboxSpec, own_uids: bool) -> None:
    for mount in spec.mounts:
        if not mount.host.exists():
            raise SandboxError(f"mount {mount.host} is not there; install it or take it out of the spec")
        need = OTHERS_READ | (OTHERS_ENTER if mount.host.is_dir() else 0)
        if own_uids and mount.host.stat().st_mode & need != need:
            raise SandboxError(f"mount {mount.host} cannot be read by the box's user; run chmod -R o+rX {mount.host}")
