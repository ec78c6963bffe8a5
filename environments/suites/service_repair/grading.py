"""Judging a final state: what was broken besides, and the tree that a fresh box checks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from environments.suites.service_repair.apps import checker_files
from environments.suites.service_repair.blueprint import Blueprint
from environments.suites.service_repair.faults.base import Leeway
from environments.suites.service_repair.tree import Entry, Tree

_SHELL_LINE = re.compile(rb"#! ?/(usr/)?bin/(env )?(sh|bash|dash)")
"""The first lines that run a script whole: an option such as -n would run nothing of it."""


def damage(plan: Blueprint, final: Tree) -> tuple[str, ...]:
    """What is not as it should be apart from what the check judges, one line each, in order of path."""
    return tuple(_damage(plan, final))


def graded_tree(plan: Blueprint, final: Tree) -> dict[str, Entry]:
    """The final tree with pristine checker files and with no cached findings."""
    caches = {app.path("cache/ok") for app in plan.apps}
    pristine = checker_files(plan.apps)
    own = {
        path: entry for path, entry in final.items() if path not in caches and path.partition("/")[0] not in pristine
    }
    return own | pristine


def _damage(plan: Blueprint, final: Tree) -> Iterator[str]:
    allowed = plan.may_change
    for path, well in sorted(plan.well.items()):
        now = final.get(path)
        if path not in allowed:
            if now != well:
                yield f"{path}: {'gone' if now is None else 'changed'}"
        elif now is not None and now != plan.broken.get(path) and not _mended(allowed[path], well, now):
            yield f"{path}: changed beyond the mend"


def _mended(leeway: Leeway, well: Entry, now: Entry) -> bool:
    """Whether `now` lies within what a mend may do to this path."""
    if now.type != well.type:
        return False
    if leeway == "mode":
        return now.data == well.data
    if leeway == "lines":
        return sorted(now.data.split()) == sorted(well.data.split())
    if leeway == "first_line":
        shell, _, body = now.data.partition(b"\n")
        return bool(_SHELL_LINE.fullmatch(shell)) and body == well.data.partition(b"\n")[2]
    return True
