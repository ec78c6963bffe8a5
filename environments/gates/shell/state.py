"""What the reader knows and what it finds.

A text that the reader cannot know (the output of a program, an unset variable) is the one character HOLE; a text
that was decoded from something unknown is DECODED. Both travel through words, pipes and files like any text.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace
from typing import Literal

HOLE = "\ue000"
DECODED = "\ue001"

MAX_TEXT = 65_536
"""Longest text that is followed. Past it a text counts as unknown: `A=$A$A` forty times must cost nothing."""

TouchKind = Literal["read", "write", "remove", "mode"]


@dataclass(frozen=True, slots=True)
class Call:
    """A program or builtin that would run: `words[0]` is its name without folder, `stdin` what it would read."""

    words: tuple[str, ...]
    stdin: str


@dataclass(frozen=True, slots=True)
class Touch:
    """A path (absolute, links followed, may hold glob characters or HOLE) that would be read or changed.

    `remove` also reaches everything below the path.
    """

    path: str
    kind: TouchKind


@dataclass(frozen=True, slots=True)
class Assign:
    """A variable that would be set."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something whose form alone says what it is: a fork bomb, code that cannot be read, a socket."""

    act: str
    detail: str


Event = Call | Touch | Assign | Note


def bounded(text: str) -> str:
    """The text, or HOLE where it is too long to follow."""
    return text if len(text) <= MAX_TEXT else HOLE


class Unreadable(Exception):
    """Too deep or too long to follow within the reader's bounds."""


@dataclass(slots=True)
class ShellState:
    """A kept shell between two commands. `links` and `copies` map absolute path -> absolute path or program.

    `files` holds the text of files that the agent wrote where that text is known.
    """

    cwd: str
    variables: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def copy(self) -> ShellState:
        """A state that may be changed without changing this one."""
        return replace(
            self,
            variables=dict(self.variables),
            aliases=dict(self.aliases),
            functions=dict(self.functions),
            links=dict(self.links),
            copies=dict(self.copies),
            files=dict(self.files),
        )

    def absolute(self, path: str) -> str:
        """`path` as seen from the working directory, without `.` and `..`, links not followed."""
        return posixpath.normpath(posixpath.join(self.cwd, path))

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """`path` absolute, with the links that the agent made followed (at most 8 of them).

        `follow_last` False keeps a link that is the last part, as `rm` and `mv` do.
        """
        full = self.absolute(path)
        if not follow_last and full in self.links:
            parent, _, name = full.rpartition("/")
            return posixpath.join(self.resolve(parent or "/"), name)
        for _ in range(8):
            hit = next((k for k in self.links if full == k or full.startswith(k + "/")), None)
            if hit is None:
                return full
            full = posixpath.normpath(self.links[hit] + full[len(hit) :])
        return full

    def lookup(self, name: str) -> str:
        """The value of a variable, HOLE when it is not known."""
        if name == "PWD":
            return self.cwd
        if name in ("$", "PPID", "BASHPID"):
            return "$" + name  # a number that is not known, but whose it is
        return self.variables.get(name, HOLE)
