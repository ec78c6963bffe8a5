"""Boxes that hold a harness, and the recorder served where they reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, runtime_checkable

from environments.harnesses.base import Harness
from environments.harnesses.equipment import Equipment
from environments.polar.recorder import PolarRecorder
from environments.polar.server import serving
from environments.sandboxes.base import Sandbox, SandboxProvider, SandboxSpec


@runtime_checkable
class WorksInBox(Protocol):
    """A harness that is a process of the box, not of ours."""

    @property
    def equipment(self) -> Equipment:
        """What its boxes must hold beside what the suite asks for."""
        ...


class EquippedBoxes:
    """A provider whose boxes all hold a harness. `proxy` is the unix socket that the recorder is served on."""

    def __init__(self, boxes: SandboxProvider, equipment: Equipment, proxy: Path) -> None:
        self._boxes = boxes
        self._equipment = equipment
        self._proxy = proxy
        self.name = boxes.name
        self.not_covered = boxes.not_covered

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """See `SandboxProvider.start`."""
        return await self._boxes.start(self._equipment.added_to(spec, self._proxy))

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`."""
        return await self._boxes.sweep()


@asynccontextmanager
async def boxes_for(
    harness: Harness, boxes: SandboxProvider, recorder: PolarRecorder
) -> AsyncIterator[SandboxProvider]:
    """The boxes that rollouts under `harness` start: `boxes` as they are for one that works in our process.

    For one that works in the box, the recorder is served on a unix socket while the body runs. Graders keep `boxes`.
    """
    if not isinstance(harness, WorksInBox):
        yield boxes
        return
    with TemporaryDirectory(prefix="longbreath-") as folder:
        proxy = Path(folder) / "proxy.sock"
        async with serving(recorder, unix_socket=proxy):
            yield EquippedBoxes(boxes, harness.equipment, proxy)
