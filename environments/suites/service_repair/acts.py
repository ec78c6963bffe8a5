"""What a command is for, and which non-zero exits are errors."""

from __future__ import annotations

import re
import shlex
from typing import Literal

from environments.sandboxes.base import CommandResult
from environments.types import ErrorClass

ActKind = Literal["inspect", "verify", "mend", "other"]

_START = re.compile(r"(\./|/srv/)?[a-z]+/start")
_CHECK = re.compile(r"(\./|/srv/)?check")
_SHELLS = frozenset({"bash", "sh", "dash", "env", "command", "exec", "time"})
_LOOKS = frozenset(
    [
        "awk",
        "cat",
        "cmp",
        "cut",
        "diff",
        "file",
        "find",
        "grep",
        "head",
        "ls",
        "md5sum",
        "nl",
        "od",
        "pwd",
        "readlink",
        "realpath",
        "sed",
        "sha256sum",
        "sort",
        "stat",
        "tail",
        "test",
        "tree",
        "wc",
        "[",
        "[[",
    ]
)
_MENDS = frozenset(["chmod", "cp", "install", "ln", "mkdir", "mv", "rm", "rmdir", "tee", "touch", "truncate"])
_MAY_SAY_NO = frozenset(["grep", "egrep", "fgrep", "diff", "cmp", "test", "[", "[["])
_IN_PLACE = re.compile(r"(^|\s)(-[a-zA-Z]*i[a-zA-Z.]*|--in-place\S*|-o\S*)(\s|$)")
_WRITES = re.compile(r"(?<![<>&])>{1,2}(?!&|\s*/dev/null)")
_SEPARATORS = re.compile(r"\|\||&&|[;|\n]")


def act_kind(command: str) -> ActKind:
    """'verify' runs the check, 'mend' changes files, 'inspect' only looks; of several commands the strongest.

    >>> [act_kind(c) for c in ("./check", "cat web/env", "./web/start", "sed -i s/1/2/ web/env", "cd web")]
    ['verify', 'inspect', 'inspect', 'mend', 'other']
    """
    kinds = {_part_kind(part) for part in _SEPARATORS.split(command)}
    order: tuple[ActKind, ...] = ("mend", "verify", "inspect", "other")
    return next(kind for kind in order if kind in kinds or kind == "other")


def error_class(command: str, result: CommandResult) -> ErrorClass | None:
    """What kind of error a result is. A failing check, a start that is refused, a grep without match are none."""
    if result.fault is not None:
        return "killed"
    if result.timed_out:
        return "timeout"
    if result.exit_code in (0, None):
        return None
    program = _program(_SEPARATORS.split(command.strip())[-1])
    if _CHECK.fullmatch(program) and result.exit_code == 1:
        return None
    if _START.fullmatch(program) and "No such file" not in result.output:
        return None
    if program in _MAY_SAY_NO and result.exit_code == 1:
        return None
    return "exit_code"


def _words(part: str) -> list[str]:
    try:
        return shlex.split(part)
    except ValueError:
        return part.split()


def _program(part: str) -> str:
    """The first word that is no shell before a script."""
    words = _words(part)
    while len(words) > 1 and words[0] in _SHELLS:
        words = words[1:]
    return words[0] if words else ""


def _part_kind(part: str) -> ActKind:
    program = _program(part)
    if _CHECK.fullmatch(program):
        return "verify"
    if program in _MENDS or _WRITES.search(part):
        return "mend"
    if program in ("sed", "sort") and _IN_PLACE.search(part):
        return "mend"
    if program in _LOOKS or _START.fullmatch(program):
        return "inspect"
    return "other"
