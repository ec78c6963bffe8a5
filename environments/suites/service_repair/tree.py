"""A file tree as a value, and its way into and out of the tar that sandboxes speak."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

EntryType = Literal["file", "dir", "link", "other"]
_TAR_TYPES: Mapping[EntryType, bytes] = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


MAX_FILE_BYTES = 2**20
"""A larger file than this is of type 'other': no task has one, and a judge need not carry it."""


class TreeError(ValueError):
    """A tar that is no tree below one folder. The message names the member."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path. `data` is a file's content or a link's target; `mode` are the permission bits (links: 0)."""

    type: EntryType
    mode: int = 0
    data: bytes = b""


Tree = Mapping[str, Entry]


def file(text: str, mode: int = 0o644) -> Entry:
    """A file with this text."""
    return Entry("file", mode, text.encode())


def folder() -> Entry:
    """A directory of the usual mode."""
    return Entry("dir", 0o755)


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry("link", 0, target.encode())


def to_tar(tree: Tree) -> bytes:
    """The same tree gives the same bytes: sorted, no times, no owners. Entries of type 'other' are left out."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted(tree.items()):
            if entry.type == "other":
                continue
            info = tarfile.TarInfo(path)
            info.type = _TAR_TYPES[entry.type]
            info.mode = 0o777 if entry.type == "link" else entry.mode
            if entry.type == "link":
                info.linkname = os.fsdecode(entry.data)
                tar.addfile(info)
            else:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


def from_tar(state: bytes) -> dict[str, Entry]:
    """The tree in a tar; hard links become files. Raises TreeError on a path that leaves the folder."""
    with tarfile.open(fileobj=io.BytesIO(state)) as tar:
        return dict(_entries(tar))


def _entries(tar: tarfile.TarFile) -> Iterator[tuple[str, Entry]]:
    for member in tar:
        path = posixpath.normpath(member.name)
        if path.startswith(("/", "..")):
            raise TreeError(f"tar member {member.name!r} lies outside the tree; want relative paths below it")
        if path != ".":
            yield path, _entry(tar, member)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    mode = member.mode & 0o7777
    if member.isdir():
        return Entry("dir", mode)
    if member.issym():
        return Entry("link", 0, os.fsencode(member.linkname))
    known = (member.isreg() and member.size <= MAX_FILE_BYTES) or member.islnk()
    stream = tar.extractfile(member) if known else None
    return Entry("other", mode) if stream is None else Entry("file", mode, stream.read())
