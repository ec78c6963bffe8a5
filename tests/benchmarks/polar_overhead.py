"""What the recorder costs: added latency and throughput, against the engine called directly and against LiteLLM.

    python tests/benchmarks/polar_overhead.py --litellm PATH/TO/litellm \\
        --out tests/benchmarks/results/polar_overhead.json

All servers are processes of their own on loopback; the client speaks HTTP/1.1 over plain sockets, so that its own
cost is small and equal for all. `bare` is the same engine behind the smallest ASGI app: what a direct call costs
over the same transport. Latencies are of interleaved pairs (bare, proxy), throughputs of interleaved rounds, so that
other work on the machine strikes both alike; `net` is without the measured median fsync, and CPU milliseconds a call
are what a busy machine leaves comparable. No tool answers the same twice, except under `latency_1_seen`: there all do,
and the recorder remembers the ids (in groups of real rollouts 9 of 10 texts have been seen before). LiteLLM has `bare`
as its upstream and lives in an environment of its own: `pip install 'litellm[proxy]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks")]

from polar_overhead_servers import Server, cpu_s, litellm_proxy  # noqa: E402

TURNS = 8  # calls of one conversation
APART_S = 0.01  # between the starts of two sessions: those that begin as one would ask as one in every turn
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
SYSTEM = "You mend services. " * 120  # about the size of mini-SWE-agent's first prompt
OBSERVATION = "2026-01-01 00:00:00 ERROR cannot bind port {port}: in use\n" * 8
NUMBERS = count()


@dataclass(frozen=True)
class Target:
    """One place to ask: host, port, path and key."""

    host: str
    port: int
    path: str
    key: str

    @staticmethod
    def of(url: str, key: str = "x") -> Target:
        rest = url.removeprefix("http://")
        address, _, path = rest.partition("/")
        host, _, port = address.partition(":")
        return Target(host, int(port), f"/{path}" if path else "", key)


class Connection:
    """HTTP/1.1 with keep-alive, and nothing else."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> tuple[float, float, bytes]:
        """Seconds to the first byte of the body, seconds to its end, and the body."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.target.host, self.target.port, limit=2**22)
        reader, writer = self.streams
        head = (
            f"POST {self.target.path}/v1/chat/completions HTTP/1.1\r\nhost: {self.target.host}\r\n"
            f"authorization: Bearer {self.target.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        begun = time.perf_counter()
        writer.write(head.encode() + body)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if not headers.startswith("http/1.1 200"):
            raise RuntimeError(headers + (await reader.read(500)).decode())
        if "content-length:" in headers:
            size = int(headers.split("content-length:")[1].split("\r\n")[0])
            data = await reader.readexactly(size)
            now = time.perf_counter() - begun
            return now, now, data
        first, parts = 0.0, []
        while (size := int(await reader.readline(), 16)) > 0:
            parts.append(await reader.readexactly(size))
            first = first or time.perf_counter() - begun
            await reader.readline()
        await reader.readline()
        return first, time.perf_counter() - begun, b"".join(parts)


class Conversation:
    """What a harness sends: a history that grows by an answer and an observation a turn.

    Its task and observations are no other's, unless they are `seen`: then observations are those of all others.
    """

    def __init__(self, *, seen: bool = False) -> None:
        number = next(NUMBERS)
        self.first_port = 0 if seen else 1000 + number * TURNS
        self.step = 0 if seen else 1
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"Mend service {number}."},
        ]

    def body(self, *, stream: bool) -> bytes:
        return json.dumps({"model": "policy", "messages": self.messages, "tools": [TOOL], "stream": stream}).encode()

    def take(self, turn: int) -> None:
        arguments = '{"command": "tail -n 20 log/service.log"}'
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        said = {
            "role": "assistant",
            "content": None,
            "reasoning_content": "look at the log first",
            "tool_calls": [call],
        }
        observation = OBSERVATION.format(port=self.first_port + turn * self.step)
        self.messages += [said, {"role": "tool", "tool_call_id": f"c{turn}", "content": observation}]


async def pairs(
    bare: Target, proxies: Sequence[Target], *, stream: bool = False, seen: bool = False
) -> list[tuple[float, float]]:
    """Interleaved (bare, proxy) latencies over one conversation for each of `proxies`; first byte if `stream`."""
    found = []
    ours = Connection(bare)
    for target in proxies:
        conversation, theirs = Conversation(seen=seen), Connection(target)
        for turn in range(TURNS):
            body = conversation.body(stream=stream)
            order = (ours, theirs) if turn % 2 else (theirs, ours)
            times = {id(c): (await c.post(body))[0 if stream else 1] for c in order}
            found.append((times[id(ours)], times[id(theirs)]))
            conversation.take(turn)
        if theirs.streams is not None:
            theirs.streams[1].close()
    return found


async def throughput(targets: Sequence[Target], workers: int) -> float:
    """Requests a second over whole conversations, `workers` at a time."""
    queue = list(targets)
    done = 0

    async def work() -> None:
        nonlocal done
        while queue:
            conversation, connection = Conversation(), Connection(queue.pop())
            for turn in range(TURNS):
                await connection.post(conversation.body(stream=False))
                done += 1
                conversation.take(turn)
            if connection.streams is not None:
                connection.streams[1].close()

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return done / (time.perf_counter() - begun)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds."""
    ordered = sorted(values)
    return {f"p{q}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 3) for q in (50, 95, 99)}


def latency(
    folder: str, *, sessions: int, conversations: int, token_ms: float, stream: bool = False, seen: bool = False
) -> dict[str, Any]:
    """Added latency at a number of concurrent sessions, gross and net of the median fsync."""
    bare = Server("bare", folder, token_ms)
    polar = Server("polar", folder, token_ms, sessions * conversations)
    targets = [Target.of(url, key) for url, key in polar.ready["sessions"]]
    direct = Target.of(bare.ready["url"])

    async def run() -> list[tuple[float, float]]:
        rows = await asyncio.gather(*(session(number) for number in range(sessions)))
        return [pair for row in rows for pair in row]

    async def session(number: int) -> list[tuple[float, float]]:
        await asyncio.sleep(number * APART_S)
        return await pairs(direct, targets[number::sessions], stream=stream, seen=seen)

    began = {"direct": bare.cpu_s(), "proxy": polar.cpu_s()}
    found = asyncio.run(run())
    ended = {"direct": bare.cpu_s(), "proxy": polar.cpu_s()}
    stats = polar.stop()
    bare.stop()
    added = [proxy - direct for direct, proxy in found]
    # The first byte leaves before any fsync, so there is nothing to take off.
    net = added if stream else [x - stats["fsync_p50_s"] for x in added]
    return {
        "sessions": sessions,
        "calls": len(found),
        "measured": "first streamed byte" if stream else "whole answer",
        "token_ms": token_ms,
        "direct_ms": quantiles([d for d, _ in found]),
        "proxy_ms": quantiles([p for _, p in found]),
        "added_gross_ms": quantiles(added),
        "added_net_ms": quantiles(net),
        "fsync_p50_ms": round(1000 * stats["fsync_p50_s"], 3),
        "fsyncs": stats["fsyncs"],
        "cpu_ms_a_call": {name: round(1000 * (ended[name] - began[name]) / len(found), 3) for name in began},
    }


@dataclass
class Contender:
    """One server under load: whom to ask in each round, the rates so far, and its CPU clock."""

    rounds: list[list[Target]]
    pid: int
    rates: list[float]
    cpu_s: float = 0.0

    def run(self, number: int, workers: int) -> None:
        """One round; the first warms up and does not count."""
        before = cpu_s(self.pid)
        rate = asyncio.run(throughput(self.rounds[number], workers))
        if number:
            self.rates.append(round(rate, 1))
            self.cpu_s += cpu_s(self.pid) - before

    def report(self) -> dict[str, Any]:
        """Its rates and what a call cost it."""
        calls = TURNS * sum(len(targets) for targets in self.rounds[1:])
        return {
            "requests_per_s": self.rates,
            "median": statistics.median(self.rates),
            "cpu_ms_a_call": round(1000 * self.cpu_s / calls, 3),
        }


def compare_throughput(
    folder: str, litellm: str | None, *, workers: int, conversations: int, rounds: int
) -> dict[str, Any]:
    """Requests a second with an engine that takes no time: rounds of each contender in turn."""
    total = rounds + 1
    with ExitStack() as stack:
        bare, polar = Server("bare", folder, 0), Server("polar", folder, 0, conversations * total)
        stack.callback(bare.stop)
        stack.callback(polar.stop)
        direct = Target.of(bare.ready["url"])
        recorded = [Target.of(url, key) for url, key in polar.ready["sessions"]]
        contenders = {
            "bare": Contender([[direct] * conversations] * total, bare.process.pid, []),
            "polar": Contender([recorded[i::total] for i in range(total)], polar.process.pid, []),
        }
        if litellm is not None:
            url, pid = stack.enter_context(litellm_proxy(litellm, bare.ready["url"]))
            through = Target.of(url)
            contenders["litellm"] = Contender([[through] * conversations] * total, pid, [])
        for number in range(total):
            for contender in contenders.values():
                contender.run(number, workers)
        result: dict[str, Any] = {"workers": workers, "calls_a_round": conversations * TURNS}
        result |= {name: contender.report() for name, contender in contenders.items()}
        if litellm is not None:
            result["times_litellm"] = round(result["polar"]["median"] / result["litellm"]["median"], 2)
            added = asyncio.run(pairs(direct, [through] * 4))
            result["litellm"]["added_ms_1_session"] = quantiles([proxy - bare_s for bare_s, proxy in added])
        return result


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run, each told as it comes. At 64 and 256 sessions the engine's pace asks for the same calls
    a second."""
    from fakes import make_tiny_folder

    found: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()}
    }

    def note(name: str, figures: dict[str, Any]) -> None:
        found[name] = figures
        print(name, json.dumps(figures), file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = str(make_tiny_folder(Path(scratch) / "model", vocab=512, layers=1, hidden=32))
        few = args.quick
        alone = 4 if few else 25
        note("latency_1", latency(folder, sessions=1, conversations=alone, token_ms=0.3))
        note("latency_1_seen", latency(folder, sessions=1, conversations=alone, token_ms=0.3, seen=True))
        note("latency_64", latency(folder, sessions=64, conversations=1 if few else 2, token_ms=15))
        note("latency_256", latency(folder, sessions=256, conversations=1, token_ms=60))
        note("first_byte_1", latency(folder, sessions=1, conversations=2 if few else 8, token_ms=3, stream=True))
        rounds = 1 if few else 3
        rates = compare_throughput(folder, args.litellm, workers=64, conversations=64, rounds=rounds)
        note("throughput_64", rates)
    return found | {"load_after": os.getloadavg()}


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--litellm", help="the litellm executable of an environment of its own")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    text = json.dumps(measure(args), indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
