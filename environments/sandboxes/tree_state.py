"""A box's tree as tar bytes that depend on its content alone, and the difference of two such trees."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from contextlib import suppress

from environments.sandboxes.base import StateChange
from environments.sandboxes.box_files import BoxFiles, read_up_to
from infra.digests import digest_bytes

MAX_ENTRIES = 65_536
MAX_PATH_BYTES = 3_500
OWNER_BITS = 0o700
BLOCK_BYTES = 512  # the unit of st_blocks
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL)  # changed meanwhile by what still runs in the box


def export_tree(files: BoxFiles, *, max_hole_bytes: int) -> bytes:
    """The tree as a GNU tar: sorted, times 0, no owners; modes, links and hard links kept.

    Left out, for a tar cannot mean them elsewhere or would grow past what a box can hold: devices, sockets and
    pipes; what is mounted there; files with holes once their sizes sum to more than `max_hole_bytes`; paths longer
    than MAX_PATH_BYTES; entries past MAX_ENTRIES.
    """
    exporter = _Exporter(files, max_hole_bytes)
    try:
        exporter.walk()
    finally:
        exporter.close_again()
    return exporter.finish()


class _Exporter:
    def __init__(self, files: BoxFiles, max_hole_bytes: int) -> None:
        self._files = files
        self._hole_bytes_left = max_hole_bytes
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.GNU_FORMAT)  # noqa: SIM115
        self._first_name: dict[int, str] = {}
        self._opened_up: list[tuple[str, int]] = []
        self._count = 0
        with files.opened("", os.O_PATH) as fd:
            self._device = os.fstat(fd).st_dev

    def finish(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()

    def walk(self) -> None:
        waiting = [""]
        while waiting:
            path = waiting.pop()
            below = [f"{path}/{name}".lstrip("/") for name in self._names(path)]
            folders = [p for p in below if self._entry(p)]
            waiting += reversed(folders)

    def close_again(self) -> None:
        """Give what had to be opened up its modes back, innermost first."""
        for path, mode in reversed(self._opened_up):
            with suppress(OSError):  # gone or changed meanwhile by what still runs in the box
                self._files.set_mode(path, mode)

    def _open_up(self, path: str, mode: int) -> None:
        """Let a host user who is not root read what the agent locked: it owns it."""
        if os.geteuid() != 0 and mode & OWNER_BITS != OWNER_BITS:
            self._files.set_mode(path, mode | OWNER_BITS)
            self._opened_up.append((path, mode))

    def _names(self, path: str) -> list[str]:
        try:
            with self._files.opened(path, os.O_RDONLY | os.O_DIRECTORY, follow=False) as fd:
                return sorted(os.listdir(fd))
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise

    def _entry(self, path: str) -> bool:
        """Add one path; whether it is a folder to go into."""
        if self._count >= MAX_ENTRIES or len(os.fsencode(path)) > MAX_PATH_BYTES:
            return False
        try:
            return self._add(path)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise

    def _add(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        with self._files.opened(parent, os.O_PATH | os.O_DIRECTORY, follow=False) as parent_fd:
            status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=parent_fd) if stat.S_ISLNK(status.st_mode) else ""
        if status.st_dev != self._device:
            return False
        member = tarfile.TarInfo(path)
        member.mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            member.type, member.linkname, member.mode = tarfile.SYMTYPE, target, 0o777
        elif stat.S_ISREG(status.st_mode):
            return self._add_file(member, status.st_ino)
        else:
            return False
        if member.isdir():
            self._open_up(path, member.mode)
        self._write(member, b"")
        return member.isdir()

    def _add_file(self, member: tarfile.TarInfo, inode: int) -> bool:
        first = self._first_name.get(inode)
        if first is not None:
            member.type, member.linkname = tarfile.LNKTYPE, first
            self._write(member, b"")
            return False
        self._open_up(member.name, member.mode)
        with self._files.opened_file(member.name, follow=False) as stream:
            status = os.fstat(stream.fileno())
            if not self._holes_fit(status):
                return False
            self._write(member, read_up_to(stream, status.st_size))
        if status.st_nlink > 1:
            self._first_name[status.st_ino] = member.name
        return False

    def _holes_fit(self, status: os.stat_result) -> bool:
        if status.st_blocks * BLOCK_BYTES >= status.st_size:
            return True
        fits = status.st_size <= self._hole_bytes_left
        self._hole_bytes_left -= status.st_size if fits else 0
        return fits

    def _write(self, member: tarfile.TarInfo, data: bytes) -> None:
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))
        self._count += 1


def import_tree(files: BoxFiles, state: bytes) -> None:
    """Lay a tar's folders, files and links over the tree. Raises ValueError for other members or unsafe names."""
    folders: list[tuple[str, int]] = []
    with tarfile.open(fileobj=io.BytesIO(state), mode="r:") as tar:
        for member in tar:
            name = _safe_name(member.name)
            if not name:
                continue
            if member.isdir():
                files.make_folders(name, follow=False)
                folders.append((name, member.mode))
            elif member.issym():
                files.link(name, member.linkname, hard=False)
            elif member.islnk():
                files.link(name, _safe_name(member.linkname), hard=True)
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None  # isreg() says so
                files.write(name, content.read(), mode=member.mode & 0o7777, follow_parents=False)
            else:
                raise ValueError(f"tar member {member.name!r} is no file, folder or link; leave it out of the state")
    for name, mode in reversed(folders):
        files.set_mode(name, mode & 0o7777)


def _safe_name(name: str) -> str:
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts or name.startswith("/"):
        raise ValueError(f"tar member {name!r} leaves the tree; want names relative to workdir without '..'")
    return "/".join(parts)


def _index(state: bytes) -> dict[str, tuple[bytes, int, str, str]]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(state), mode="r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            digest = digest_bytes(content.read()) if content else ""
            name = _safe_name(member.name)
            if name:
                found[name] = (member.type, 0 if member.issym() else member.mode & 0o7777, member.linkname, digest)
    return found


def changes(old_state: bytes, new_state: bytes) -> tuple[StateChange, ...]:
    """What differs from the old tar to the new: type, mode, link target or content. Sorted by path."""
    old, new = _index(old_state), _index(new_state)
    found = []
    for path in sorted(old.keys() | new.keys()):
        if path not in old:
            found.append(StateChange(path=path, kind="added"))
        elif path not in new:
            found.append(StateChange(path=path, kind="removed"))
        elif old[path] != new[path]:
            found.append(StateChange(path=path, kind="changed"))
    return tuple(found)
