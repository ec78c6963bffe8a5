"""What the command policy finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Act = Literal["network", "privilege", "kill", "history", "tamper", "flood", "hidden"]
ACTS: frozenset[Act] = frozenset(get_args(Act))
"""Acts that are forbidden everywhere, unless a suite lifts one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A forbidden act: one of `Act`, or `edit`, `read`, `run` for what a suite forbids."""

    act: str
    detail: str
