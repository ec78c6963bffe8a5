"""What a tool's result on the wire says of the command behind it, in the words of the harnesses that have been seen."""

from __future__ import annotations

import re

from environments.sandboxes.base import CommandResult

EXIT_CODES = (
    re.compile(r"<returncode>\s*(-?\d+)\s*</returncode>"),
    re.compile(r"^\s*(?:Error: )?Exit code:? (-?\d+)\b", re.IGNORECASE | re.MULTILINE),
    re.compile(r"\bProcess exited with code (-?\d+)"),
    re.compile(r"^\[exit (-?\d+)\]\s*$", re.MULTILINE),
    re.compile(r'"exit_code"\s*:\s*(-?\d+)'),
)
# The shell's own last words and the codes that it ends with after them, for harnesses that name no code.
SHELL_ERRORS = (
    (re.compile(r"^\S*sh: .*: (?:command )?not found$"), 127),
    (re.compile(r"^\S*sh: .*: No such file or directory$"), 127),
    (re.compile(r"^\S*sh: .*: Permission denied$"), 126),
    (re.compile(r"^\S*sh: .*syntax error\b.*$"), 2),
)
TIMED_OUT = re.compile(
    r"^\[timed out\]\s*$|^\W*command timed out after \d|\bterminated command after exceeding timeout\b",
    re.IGNORECASE | re.MULTILINE,
)


def exit_code_of(text: str) -> int | None:
    """The exit code that a tool's result speaks of; None where it names none."""
    for pattern in EXIT_CODES:
        found = pattern.search(text)
        if found is not None:
            return int(found.group(1))
    last = text.rstrip().rpartition("\n")[2]
    return next((code for pattern, code in SHELL_ERRORS if pattern.match(last)), None)


def as_command_result(text: str, duration_s: float) -> CommandResult:
    """A tool's result as the box would have told it, as far as it can be read off its text."""
    return CommandResult(
        exit_code=exit_code_of(text),
        output=text,
        timed_out=TIMED_OUT.search(text) is not None,
        truncated=False,
        duration_s=duration_s,
    )
