"""What is Docker's own about a box: the engine's failures, and that nothing of a container stays.

`DOCKER_HOST=unix:///... LONGBREATH_DOCKER_IMAGE=... pytest -m docker tests/environments/sandboxes`
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from environments.sandboxes.base import SandboxError, SandboxSpec
from environments.sandboxes.docker import DockerProvider

IMAGE = os.environ.get("LONGBREATH_DOCKER_IMAGE", "python:3.12-slim")
OWNER = f"""
import asyncio, os
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker import DockerProvider
async def main():
    await (await DockerProvider(image={IMAGE!r}).start(SandboxSpec(label="orphan"))).run("true")
    os._exit(1)
asyncio.run(main())
"""


def containers() -> list[str]:
    import docker

    return [c.name or "" for c in docker.from_env().containers.list(all=True, filters={"label": "longbreath.box"})]


async def test_an_engine_that_does_not_answer_says_how_to_start_it(tmp_path: Path) -> None:
    provider = DockerProvider(image="any", base_url=f"unix://{tmp_path}/absent.sock")
    with pytest.raises(SandboxError, match=r"no Docker engine answers.*DOCKER_HOST"):
        await provider.start(SandboxSpec(label="x"))


@pytest.mark.docker
async def test_a_missing_image_says_to_pull_it() -> None:
    with pytest.raises(SandboxError, match="no image 'longbreath-no-such-image:0' here"):
        await DockerProvider(image="longbreath-no-such-image:0").start(SandboxSpec(label="x"))
    assert not [name for name in containers() if f"-{os.getpid()}-" in name]


@pytest.mark.docker
async def test_stop_removes_the_container_and_its_folder() -> None:
    before = set(Path(tempfile.gettempdir()).glob("longbreath-*"))
    box = await DockerProvider(image=IMAGE).start(SandboxSpec(label="x"))
    await box.run("setsid sleep 91 & echo x > f")
    assert [name for name in containers() if f"-{os.getpid()}-" in name]
    folders = set(Path(tempfile.gettempdir()).glob("longbreath-*")) - before
    await box.stop()
    assert not [name for name in containers() if f"-{os.getpid()}-" in name]
    assert folders
    assert not [folder for folder in folders if folder.exists()]


@pytest.mark.docker
async def test_sweep_removes_the_containers_of_dead_owners_and_no_others() -> None:
    provider = DockerProvider(image=IMAGE)
    box = await provider.start(SandboxSpec(label="alive"))
    done = subprocess.run([sys.executable, "-c", OWNER], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 1
    assert await provider.sweep() >= 1
    assert (await box.run("echo alive")).output == "alive\n"
    await box.stop()
    assert await provider.sweep() == 0
