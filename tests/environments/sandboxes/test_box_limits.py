"""Limits hold, each by control groups and by the watcher, and breaking one is the agent's fault, never the host's."""

from __future__ import annotations

import asyncio
import resource

import psutil

from environments.sandboxes.base import BoxLimits, Sandbox, SandboxProvider, SandboxSpec


async def test_a_memory_hog_is_killed_and_named(limited_box: Sandbox) -> None:
    result = await limited_box.run("python3 -c 'x = bytearray(400 * 2**20)'")
    assert (result.exit_code, result.fault, result.timed_out) == (137, "out_of_memory", False)
    assert (await limited_box.run("echo alive")).output.endswith("alive\n")


async def test_memory_is_a_total_over_processes(limited_box: Sandbox) -> None:
    hog = "python3 -c 'import time; x = bytearray(40 * 2**20); time.sleep(1.5)' & "
    result = await limited_box.run(hog * 6 + "wait", timeout_s=15)
    assert result.fault == "out_of_memory"


async def test_memory_below_the_limit_is_given(limited_box: Sandbox) -> None:
    result = await limited_box.run("python3 -c 'x = bytearray(60 * 2**20); print(len(x))'")
    assert (result.output, result.fault) == ("62914560\n", None)


async def test_a_fork_bomb_is_stopped_and_the_box_goes_on(limited_box: Sandbox) -> None:
    result = await limited_box.run(":(){ :|:& };:; sleep 20", timeout_s=15)
    assert result.fault == "process_limit"
    after = await limited_box.run("echo a | cat; ls /proc | grep -c '^[0-9]'", timeout_s=15)
    *_, letter, number = after.output.split()
    assert (letter, after.fault) == ("a", None)
    assert int(number) < 10


async def test_a_fork_bomb_left_in_the_background_is_reported_with_the_next_command(limited_box: Sandbox) -> None:
    script = "import os, time\ntime.sleep(0.3)\nwhile True:\n  try: os.fork()\n  except OSError: time.sleep(0.1)"
    await limited_box.run(f"cat > bomb.py <<'END'\n{script}\nEND\npython3 bomb.py > /dev/null 2>&1 &")
    await asyncio.sleep(1.5)
    after = await limited_box.run("echo alive; pgrep -fc bomb.py", timeout_s=15)
    assert after.fault == "process_limit"
    assert after.output.endswith("alive\n0\n")


async def test_a_full_disk_is_named_once_and_can_be_emptied(limited_box: Sandbox) -> None:
    full = await limited_box.run("head -c 20000000 /dev/zero > big; echo $?")
    assert (full.fault, full.output.splitlines()[-1]) == ("disk_full", "1")
    assert "No space left" in full.output
    assert (await limited_box.run("stat -c %s big")).output == "8388608\n"
    emptied = await limited_box.run("rm big; echo x > small; cat small")
    assert (emptied.output, emptied.fault) == ("x\n", None)
    for folder in ("/tmp", "/home/agent", "/dev/shm"):
        assert (await limited_box.run(f"head -c 40000000 /dev/zero > {folder}/big; rm {folder}/big")).output != ""


async def test_long_output_keeps_head_and_tail_and_says_what_was_cut(limited_box: Sandbox) -> None:
    result = await limited_box.run("echo first; seq 100000; echo last; false")
    assert (result.truncated, result.exit_code, result.fault) == (True, 1, None)
    assert result.output.startswith("first\n1\n2\n")
    assert result.output.endswith("100000\nlast\n")
    cut = int(result.output.split("[... ")[1].split(" ")[0])
    assert cut == len("first\nlast\n") + sum(len(f"{n}\n") for n in range(1, 100_001)) - 4096


async def test_output_of_exactly_the_limit_is_whole(limited_box: Sandbox) -> None:
    result = await limited_box.run("head -c 4096 /dev/zero | tr '\\0' x")
    assert (result.truncated, len(result.output)) == (False, 4096)


async def test_endless_output_stays_flat_in_memory(limited_box: Sandbox) -> None:
    host = psutil.Process()
    before = host.memory_info().rss
    running = asyncio.create_task(limited_box.run("yes", timeout_s=1))
    peak_box = 0
    while not running.done():
        await asyncio.sleep(0.1)
        peak_box = max([peak_box, *(p.info["memory_info"].rss for p in processes_1())])
    result = running.result()
    assert (result.timed_out, result.truncated) == (True, True)
    assert len(result.output) < 4200
    assert host.memory_info().rss - before < 16 * 2**20
    assert 0 < peak_box < 40 * 2**20


def processes_1() -> list[psutil.Process]:
    """Process 1 of every box on this host, also in containers."""
    found = psutil.process_iter(["cmdline", "memory_info"])
    return [p for p in found if "python3" in (p.info["cmdline"] or [""])[0] and "process_one" in str(p.info["cmdline"])]


async def test_output_without_end_in_the_background_does_not_disturb_later_commands(limited_box: Sandbox) -> None:
    await limited_box.run("yes &")
    await asyncio.sleep(0.3)
    result = await limited_box.run("echo here; kill %1", timeout_s=10)
    assert (result.exit_code, result.truncated, result.timed_out) == (0, True, False)


async def test_descriptors_and_cores_are_limited(box: Sandbox) -> None:
    assert (await box.run("ulimit -n; ulimit -c")).output == "1024\n0\n"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256


async def test_a_box_killed_with_its_process_1_by_its_own_memory_is_the_agents_fault(
    provider: SandboxProvider,
) -> None:
    box = await provider.start(
        SandboxSpec(label="files eat memory", limits=BoxLimits(memory_mb=48, disk_mb=64, processes=24))
    )
    fill = "head -c 60000000 /dev/zero > /srv/a; head -c 60000000 /dev/zero > /tmp/a; echo done"
    results = [await box.run(fill, timeout_s=10) for _ in range(3)]
    assert "out_of_memory" in {r.fault for r in results}
    assert isinstance(await box.export_state(), bytes)
    await box.stop()
