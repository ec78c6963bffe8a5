"""Files of a box as the host reaches them: from a descriptor of its root, never following a link out of it.

Every path is resolved by openat2(2) with RESOLVE_IN_ROOT and without magic links, so `..`, absolute links and
/proc links cannot leave the box, whoever races to change the tree. Nothing here runs the agent's tools.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from environments.sandboxes.base import SandboxError

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT = 0x02, 0x04, 0x10
_RETRIES = 100
PAGE_BYTES = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def _openat2(root_fd: int, path: str, flags: int, resolve: int) -> int:
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)
    number = errno.EAGAIN
    for _ in range(_RETRIES):
        fd = _libc.syscall(_OPENAT2, root_fd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    if number in (errno.ENOSYS, errno.EPERM):
        raise SandboxError(
            f"openat2 failed with {os.strerror(number)}; reaching a box's files safely needs Linux 5.6 or later "
            "and, in a container, a seccomp profile that allows openat2"
        )
    raise OSError(number, os.strerror(number), path)


class BoxFiles:
    """Reads and writes below one directory descriptor of a box; owns the descriptor.

    `owner` is (uid, gid) for what is written, None where the host user is already the box's user. Safe to close
    while another thread works with it: that one then gets SandboxError, never a stranger's descriptor.
    """

    def __init__(self, root_fd: int, owner: tuple[int, int] | None, *, proc_device: int | None = None) -> None:
        self._root_fd: int | None = root_fd
        self._owner = owner
        self._lock = threading.Lock()
        self._proc_device = self._device("/proc") if proc_device is None else proc_device

    def below(self, path: str) -> BoxFiles:
        """The same for a folder of this one. Raises OSError."""
        fd = self._open(path, os.O_PATH | os.O_DIRECTORY, _IN_ROOT | _NO_MAGICLINKS)
        return BoxFiles(fd, self._owner, proc_device=self._proc_device)

    def close(self) -> None:
        """Let go of the tree. Idempotent."""
        with self._lock:
            if self._root_fd is not None:
                os.close(self._root_fd)
            self._root_fd = None

    def _device(self, path: str) -> int:
        with self.opened(path, os.O_PATH) as fd:
            return os.fstat(fd).st_dev

    def _open(self, path: str, flags: int, resolve: int) -> int:
        with self._lock:
            if self._root_fd is None:
                raise SandboxError("the box has been stopped; its files are gone")
            return _openat2(self._root_fd, path or ".", flags, resolve)

    @contextmanager
    def opened(self, path: str, flags: int, *, follow: bool = True) -> Iterator[int]:
        """A descriptor of an existing path; with `follow` false no part of it may be a link. Raises OSError."""
        fd = self._open(path, flags, _IN_ROOT | _NO_MAGICLINKS | (0 if follow else _NO_SYMLINKS))
        try:
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def opened_file(self, path: str, *, follow: bool = True) -> Iterator[IO[bytes]]:
        """A regular file to read from. Raises OSError for anything else, which is never opened for real.

        Files of /proc count as anything else: read by a host user who is root they would tell of the host.
        """
        with self.opened(path, os.O_PATH, follow=follow) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_dev == self._proc_device:
                raise OSError(errno.EINVAL, f"not a regular file ({stat.filemode(status.st_mode)})", path)
            with open(f"/proc/self/fd/{fd}", "rb", buffering=0) as stream:
                yield stream

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """A regular file's content. Raises OSError, also for what is no regular file or larger than `max_bytes`."""
        with self.opened_file(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"{size} bytes, more than {max_bytes}", path)
            return read_up_to(stream, max_bytes)

    def make_folders(self, path: str, *, follow: bool = True) -> None:
        """Make a folder and its parents, those that are missing. Raises OSError."""
        parts = [p for p in path.split("/") if p]
        for count in range(1, len(parts) + 1):
            with self.opened("/".join(parts[: count - 1]), os.O_PATH | os.O_DIRECTORY, follow=follow) as parent_fd:
                try:
                    os.mkdir(parts[count - 1], 0o755, dir_fd=parent_fd)
                except FileExistsError:
                    continue
                self._own(parent_fd, parts[count - 1])

    def write(self, path: str, data: bytes, *, mode: int, follow_parents: bool = True) -> None:
        """Put a new regular file in place of whatever stood there (a link is replaced). Raises OSError."""
        with self._place(path, follow_parents) as (parent_fd, name):
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent_fd)
            with os.fdopen(fd, "wb") as stream:
                _write_with_holes(stream, data)
                if self._owner:
                    os.fchown(fd, *self._owner)
                os.fchmod(fd, mode)

    def link(self, path: str, target: str, *, hard: bool) -> None:
        """Make a symbolic link to the text `target`, or a hard link to the file at `target`. Raises OSError."""
        with self._place(path, follow=False) as (parent_fd, name):
            if not hard:
                os.symlink(target, name, dir_fd=parent_fd)
                self._own(parent_fd, name)
                return
            folder, _, source = target.rpartition("/")
            with self.opened(folder, os.O_PATH | os.O_DIRECTORY, follow=False) as source_fd:
                os.link(source, name, src_dir_fd=source_fd, dst_dir_fd=parent_fd, follow_symlinks=False)

    def set_mode(self, path: str, mode: int) -> None:
        """chmod a folder or regular file that is no link, readable or not. Raises OSError."""
        with self.opened(path, os.O_PATH | os.O_NOFOLLOW, follow=False) as fd:
            kind = os.fstat(fd).st_mode
            if not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
                raise OSError(errno.ELOOP, "changed into something else meanwhile", path)
            os.chmod(f"/proc/self/fd/{fd}", mode)

    @contextmanager
    def _place(self, path: str, follow: bool) -> Iterator[tuple[int, str]]:
        folder, _, name = path.strip("/").rpartition("/")
        self.make_folders(folder, follow=follow)
        with self.opened(folder, os.O_PATH | os.O_DIRECTORY, follow=follow) as parent_fd:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent_fd)
            yield parent_fd, name

    def _own(self, parent_fd: int, name: str) -> None:
        if self._owner:
            os.chown(name, *self._owner, dir_fd=parent_fd, follow_symlinks=False)


def read_up_to(stream: IO[bytes], max_bytes: int) -> bytes:
    """At most `max_bytes` of an unbuffered file, however it grows meanwhile."""
    parts, left = [], max_bytes
    while left > 0 and (part := stream.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _write_with_holes(stream: IO[bytes], data: bytes) -> None:
    """Write, leaving out pages of zeros: a file with holes needs no more disk here than where it came from."""
    for start in range(0, len(data), PAGE_BYTES):
        page = data[start : start + PAGE_BYTES]
        if page.count(0) == len(page):
            stream.seek(len(page), os.SEEK_CUR)
        else:
            stream.write(page)
    stream.truncate(len(data))
