"""Boxes for the tests of this folder: as the kernel's control groups hold them, and as process 1 watches them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from environments.sandboxes.base import BoxLimits, Sandbox, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider

SMALL = BoxLimits(memory_mb=128, processes=24, disk_mb=8, output_bytes=4096, cpu_s=20)


@pytest.fixture(scope="session")
def provider() -> BubblewrapProvider:
    return BubblewrapProvider()


@pytest.fixture
async def box(provider: BubblewrapProvider) -> AsyncIterator[Sandbox]:
    box = await provider.start(SandboxSpec(label="test", limits=SMALL, env=(("COLOUR", "blue"),)))
    yield box
    await box.stop()


@pytest.fixture(params=["control groups", "watcher"])
async def limited_box(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """The same limits by either means; where no control group can be written both are the watcher."""
    provider = BubblewrapProvider(use_control_groups=request.param == "control groups")
    box = await provider.start(SandboxSpec(label="limits", limits=SMALL))
    yield box
    await box.stop()
