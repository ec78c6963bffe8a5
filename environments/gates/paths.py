"""Whether a path that a command names may be one that is protected."""

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
