"""Admission to the engine: a bounded number of calls run, a bounded number wait, and a weight swap can hold all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from environments.polar.errors import Overloaded


@dataclass(slots=True)
class Gate:
    """`max_running` calls in the engine at once, `max_waiting` more may queue; the next is told to come back."""

    max_running: int
    max_waiting: int
    running: int = 0
    waiting: int = 0
    _closed: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_places(self) -> int:
        """Running and waiting places, taken or not."""
        return self.max_running + self.max_waiting

    @property
    def idle(self) -> bool:
        """Whether no call is in the engine and none waits to be."""
        return self.running + self.waiting == 0

    def check(self) -> None:
        """Raise Overloaded when neither a running nor a waiting place is free."""
        if self.running + self.waiting >= self.num_places:
            raise Overloaded(f"{self.running} calls run and {self.waiting} wait; try again in a moment")

    def enter(self) -> None:
        """Take a seat in the waiting room; `place` gives it back."""
        self.waiting += 1

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one of the running places, waiting for it if need be. Call `enter` before, once."""
        try:
            while self._closed or self.running >= self.max_running:
                await self._changed.wait()
            self.running += 1
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.running -= 1
            self._notify()

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        """Let running calls end, hold new ones back while the body runs, then let them in."""
        self._closed += 1
        try:
            while self.running:
                await self._changed.wait()
            yield
        finally:
            self._closed -= 1
            self._notify()
