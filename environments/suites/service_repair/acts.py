"""What a command is for, and which non-zero exits are errors."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import Literal

from environments.sandboxes.base import CommandResult
from environments.types import ErrorClass

ActKind = Literal["inspect", "verify", "mend", "other"]

_CHECK = re.compile(r"(\./|/srv/)?check")
_START = re.compile(r"(\./|/srv/)?[a-z]+/start")
_WRAPPERS = frozenset({"bash", "sh", "dash", "command", "exec", "time", "do", "then", "else", "if", "while", "!", "{"})
_LOOK_NAMES = (
    "awk cat cmp cut diff file find grep head ls md5sum nl od pwd readlink realpath sed sha256sum sort stat tail test "
    "tree wc [ [["
)
_MEND_NAMES = "chmod cp install ln mkdir mv rm rmdir tee touch truncate"
_LOOKS = frozenset(_LOOK_NAMES.split())
_MENDS = frozenset(_MEND_NAMES.split())
_MAY_SAY_NO = frozenset({"grep", "egrep", "fgrep", "diff", "cmp", "test", "[", "[["})
_IN_PLACE = re.compile(r"-[a-zA-Z]*i.*|--in-place.*|-o.*")
_SEPARATORS = frozenset("|&;()")
_REDIRECTIONS = frozenset({">", ">>", ">|", "&>", "&>>"})


def act_kind(command: str) -> ActKind:
    """'verify' runs the check, 'mend' changes files, 'inspect' only looks; of several commands the strongest.

    >>> [act_kind(c) for c in ("./check", "cat web/env", "./web/start", "sed -i s/1/2/ web/env", "cd web")]
    ['verify', 'inspect', 'inspect', 'mend', 'other']
    """
    kinds = {_part_kind(part) for part in _parts(command)}
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
    parts = _parts(command)
    program = parts[-1][0] if parts else ""
    if _CHECK.fullmatch(program) and result.exit_code == 1:
        return None
    if _START.fullmatch(program) and "No such file" not in result.output:
        return None
    if program in _MAY_SAY_NO and result.exit_code == 1:
        return None
    return "exit_code"


def _parts(command: str) -> list[list[str]]:
    """The simple commands of a line as words, quotes kept so that a quoted operator is none."""
    lexer = shlex.shlex(command.replace("\n", ";"), posix=False, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # a quote that never closes: the shell will refuse it, so any reading will do
        words = command.split()
    parts: list[list[str]] = [[]]
    for word in words:
        if _SEPARATORS.issuperset(word):
            parts.append([])
        elif parts[-1] or word not in _WRAPPERS:
            parts[-1].append(word)
    return [part for part in parts if part]


def _part_kind(words: list[str]) -> ActKind:
    program = words[0]
    if _CHECK.fullmatch(program):
        return "verify"
    if program in _MENDS or _writes(words):
        return "mend"
    if program in ("sed", "sort") and any(_IN_PLACE.fullmatch(word) for word in words[1:]):
        return "mend"
    if program in _LOOKS or _START.fullmatch(program):
        return "inspect"
    return "other"


def _writes(words: list[str]) -> bool:
    """Whether the output goes into a file that keeps it."""
    targets = [after for word, after in pairwise(words) if word in _REDIRECTIONS]
    return any(target != "/dev/null" for target in targets)
