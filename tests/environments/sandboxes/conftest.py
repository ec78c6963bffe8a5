"""Boxes for the tests of this folder: every contract test meets bubblewrap and, with `-m docker`, a Docker engine.

The Docker runs need an engine (DOCKER_HOST) and an image with bash and python3 (LONGBREATH_DOCKER_IMAGE).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from environments.sandboxes.base import BoxLimits, Sandbox, SandboxProvider, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.sandboxes.docker import DockerProvider

SMALL = BoxLimits(memory_mb=128, processes=24, disk_mb=8, output_bytes=4096, cpu_s=20)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


def provider_of(kind: str) -> SandboxProvider:
    if kind == "docker":
        return DockerProvider(image=os.environ.get("LONGBREATH_DOCKER_IMAGE", "python:3.12-slim"))
    return BubblewrapProvider(use_control_groups=kind != "watcher")


@pytest.fixture(scope="session", params=["bubblewrap", DOCKER])
def provider(request: pytest.FixtureRequest) -> SandboxProvider:
    return provider_of(request.param)


@pytest.fixture(scope="session")
def bubblewrap() -> BubblewrapProvider:
    return BubblewrapProvider()


@pytest.fixture
async def box(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    box = await provider.start(SandboxSpec(label="test", limits=SMALL, env=(("COLOUR", "blue"),)))
    yield box
    await box.stop()


@pytest.fixture(params=["control groups", "watcher", DOCKER])
async def limited_box(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """The same limits by each means; where no control group can be written the first two are the watcher."""
    box = await provider_of(request.param).start(SandboxSpec(label="limits", limits=SMALL))
    yield box
    await box.stop()
