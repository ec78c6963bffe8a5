"""Whether a path or program that a command names may be one that is protected or forbidden."""

from __future__ import annotations

import fnmatch

from environments.gates.shell.state import HOLE


def matches(path: str, protected: str, *, below: bool) -> bool:
    """Whether `path` (absolute, may hold globs) can name `protected` (absolute, may hold globs), or lie below it.

    `below`: the act reaches everything under `path`, so a folder above the protected one matches as well. A path
    with an unknown part matches only when what is known is the protected file's own name below a known folder.
    """
    if HOLE in path:
        return path.rsplit("/", 1)[-1] == protected.rsplit("/", 1)[-1] and path.count(HOLE) == 1
    if path == protected or path.startswith(protected + "/"):
        return True
    if below and (protected.startswith(path.rstrip("/") + "/")):
        return True
    if any(c in path for c in "*?[") and fnmatch.fnmatchcase(protected, path):
        return path.count("/") == protected.count("/") or "/*/" in path
    if any(c in protected for c in "*?["):
        return fnmatch.fnmatchcase(path, protected)
    return False


def named(program: str, names: frozenset[str]) -> bool:
    """Whether a program's name is one of `names`, or a glob that matches one (`cur[l]`)."""
    if program in names:
        return True
    return any(c in program for c in "*?[") and any(fnmatch.fnmatchcase(n, program) for n in names)
