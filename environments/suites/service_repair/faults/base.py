"""What a kind of fault is, and what planting one leaves to know."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from environments.suites.service_repair.apps import App
from environments.suites.service_repair.tree import Entry

Leeway = Literal["any", "mode", "lines", "first_line"]
"""How far a mend may move a path from the healthy tree: the check alone judges it; only its permissions; only
the order of its lines; only its first line."""


_SILENT = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault in one app.

    `shown` is what a careful agent's commands print for this fault, in order: the check's line, what its look
    shows, and at last the mend's nothing. So it costs len(shown) turns. `may_change` are the paths that its mend
    touches, seen from the top of the tree.
    """

    kind: str
    app: str
    stage: int
    shown: tuple[str, ...]
    may_change: Mapping[str, Leeway]


class FaultKind(ABC):
    """A way in which an app breaks.

    `turns` is the reference's number of turns for it, `stage` its place in the order of the check, `slots` the
    parts of an app that it needs to itself.
    """

    name: ClassVar[str]
    turns: ClassVar[int]
    stage: ClassVar[int]
    slots: ClassVar[frozenset[str]]

    @abstractmethod
    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Break `app` in `tree`."""

    def _planted(self, app: App, shown: tuple[str, ...], may_change: Mapping[str, Leeway]) -> Planted:
        """`shown` without what the last mend prints."""
        paths = {app.path(path): leeway for path, leeway in may_change.items()}
        return Planted(kind=self.name, app=app.name, stage=self.stage, shown=(*shown, _SILENT), may_change=paths)


def another(value: int, rng: random.Random) -> int:
    """A number unlike `value` with as many digits and the same first one."""
    step = 10 ** (len(str(value)) - 1)
    first = value // step * step
    other = rng.randrange(first, first + step - 1)
    return other + 1 if other >= value else other


def replace(tree: dict[str, Entry], path: str, old: str, new: str) -> None:
    """Replace text in a file of the tree. Raises ValueError where it does not stand exactly once."""
    entry = tree[path]
    text = entry.data.decode()
    if text.count(old) != 1:
        raise ValueError(f"{path} holds {old!r} {text.count(old)} times; a fault needs it exactly once")
    tree[path] = Entry(entry.type, entry.mode, text.replace(old, new).encode())
