"""What a bubblewrap box costs: start, one turn, many boxes; against a bare bash on a pipe and a bwrap per command.

Run from the checkout: `python tests/benchmarks/sandbox.py [--boxes 500] [--turns 500] [--json FILE]`. Pairs are
interleaved, so a busy machine hurts both sides alike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import psutil

from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.sandboxes.control_groups import PREFIX, find_parents
from environments.sandboxes.launch import find_bwrap

COMMANDS = {"builtin": "true", "program": "/bin/true", "python": "/usr/bin/python3 -S -c pass"}
MARKER = "end-of-command"
AT_ONCE = 16


class BarePipe:
    """The least a kept shell can cost: bash on two pipes, end marked in its output, no walls at all."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, command: str) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{command}\necho {MARKER} $?\n")
        self._bash.stdin.flush()
        while not self._bash.stdout.readline().startswith(MARKER):
            continue

    def close(self) -> None:
        self._bash.communicate()


def bwrap_per_command(bwrap: Path, command: str) -> None:
    """A fresh bwrap for one command, as harnesses do that keep no shell."""
    walls = ["--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    links = [word for name in ("bin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    subprocess.run([bwrap, *walls, *links, "bash", "-c", command], check=True, capture_output=True)


async def timed_ms(act: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await act()
    return (time.perf_counter() - started) * 1e3


def quantiles_ms(values: list[float]) -> dict[str, float]:
    low, middle, high = np.percentile(values, [5, 50, 95])
    return {"p5_ms": round(low, 3), "p50_ms": round(middle, 3), "p95_ms": round(high, 3), "n": len(values)}


async def start_and_stop(provider: BubblewrapProvider, count: int) -> dict[str, dict[str, float]]:
    starts, stops = [], []
    for _ in range(count):
        started = time.perf_counter()
        box = await provider.start(SandboxSpec(label="bench"))
        starts.append((time.perf_counter() - started) * 1e3)
        stops.append(await timed_ms(box.stop))
    return {"start": quantiles_ms(starts), "stop": quantiles_ms(stops)}


async def turns(provider: BubblewrapProvider, count: int) -> dict[str, dict[str, float]]:
    """Interleaved: the same command in the box and on the bare pipe; `overhead` is of the pairs' differences."""
    box, pipe, found = await provider.start(SandboxSpec(label="bench")), BarePipe(), {}
    for name, command in COMMANDS.items():
        boxed, bare = [], []
        for _ in range(count):
            boxed.append(await timed_ms(lambda command=command: box.run(command)))  # type: ignore[misc]
            started = time.perf_counter()
            pipe.run(command)
            bare.append((time.perf_counter() - started) * 1e3)
        found[f"turn {name}: box"] = quantiles_ms(boxed)
        found[f"turn {name}: bare bash"] = quantiles_ms(bare)
        found[f"turn {name}: overhead"] = quantiles_ms([a - b for a, b in zip(boxed, bare, strict=True)])
    fresh, bwrap = [], find_bwrap()
    for _ in range(max(10, count // 10)):
        started = time.perf_counter()
        bwrap_per_command(bwrap, "true")
        fresh.append((time.perf_counter() - started) * 1e3)
    found["turn builtin: bwrap per command"] = quantiles_ms(fresh)
    pipe.close()
    await box.stop()
    return found


async def leaks(provider: BubblewrapProvider, count: int) -> dict[str, float]:
    async def one(number: int) -> None:
        box = await provider.start(SandboxSpec(label=f"bench {number}"))
        await box.run("sleep 600 & setsid sleep 600 & echo x > f")
        await box.stop()

    await one(0)
    before, started = len(os.listdir("/proc/self/fd")), time.perf_counter()
    rss = psutil.Process().memory_info().rss
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(one(first + i) for i in range(min(AT_ONCE, count - first))))
    parents = find_parents()
    groups = list(parents.processes.glob(f"{PREFIX}{os.getpid()}-*")) if parents else []
    return {
        "boxes": count,
        "seconds": round(time.perf_counter() - started, 2),
        "descriptors left": len(os.listdir("/proc/self/fd")) - before,
        "processes left": len(psutil.Process().children(recursive=True)),
        "control groups left": len(groups),
        "host memory grown MB": round((psutil.Process().memory_info().rss - rss) / 2**20, 1),
    }


async def measure(boxes: int, turn_count: int) -> dict[str, object]:
    provider = BubblewrapProvider()
    await (await provider.start(SandboxSpec(label="warm"))).stop()
    times = await start_and_stop(provider, 40) | await turns(provider, turn_count)
    machine = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "kernel": platform.release()}
    return {"times": times, "leaks": await leaks(provider, boxes), "machine": machine}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", type=int, default=500)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.boxes, arguments.turns))
    print(f"{'':36}{'p5 ms':>9}{'p50 ms':>9}{'p95 ms':>9}{'n':>6}")
    for name, row in found["times"].items():  # type: ignore[attr-defined]
        print(f"{name:36}" + "".join(f"{row[k]:9.2f}" for k in ("p5_ms", "p50_ms", "p95_ms")) + f"{row['n']:6}")
    print(json.dumps(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
