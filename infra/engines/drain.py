"""A gate for weight swaps: calls pass while it is open; closing it waits until those inside have left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class DrainGate:
    """Many may be inside, or one may hold it closed. For use from one event loop at a time."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Inside the gate; waits while it is closed."""
        await self._until(lambda: not self._closed)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._notify()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """The gate closed and nobody inside; those who come meanwhile wait."""
        await self._until(lambda: not self._closed)
        self._closed = True
        try:
            await self._until(lambda: self._inside == 0)
            yield
        finally:
            self._closed = False
            self._notify()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
