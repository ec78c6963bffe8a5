"""What the recorder costs: added latency and throughput, against the engine called directly and against LiteLLM.

    python tests/benchmarks/polar_overhead.py --litellm PATH/TO/litellm --out tests/benchmarks/polar_overhead.json

All servers are processes of their own on loopback; the client speaks HTTP/1.1 over plain sockets, so that its own
cost is small and equal for all. `bare` is the same engine behind the smallest ASGI app: what a direct call costs
over the same transport. Latencies are of interleaved pairs (bare, proxy); LiteLLM has `bare` as its upstream.
LiteLLM lives in an environment of its own: `pip install 'litellm[proxy]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

TURNS = 8  # calls of one conversation
TEXT = "<think>\nlook at the log first\n</think>\n\n<tool_call>\n" + json.dumps(
    {"name": "bash", "arguments": {"command": "tail -n 20 log/service.log"}}
)
SAID = TEXT + "\n</tool_call><|im_end|>"
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
SYSTEM = "You mend services. " * 120  # about the size of mini-SWE-agent's first prompt
OBSERVATION = "2026-01-01 00:00:00 ERROR cannot bind port 8080: in use\n" * 8


class PacedEngine:
    """Answers the same ids to everyone, `token_s` apart."""

    def __init__(self, folder: Path, token_s: float) -> None:
        from renderers.base import load_tokenizer

        self.model_folder, self.policy_version, self.max_context = folder, 0, 10**9
        self.token_s = token_s
        self.ids = tuple(load_tokenizer(str(folder)).encode(SAID, add_special_tokens=False))

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        from infra.engines.base import TokenDelta

        for i, token in enumerate(self.ids):
            await asyncio.sleep(self.token_s)
            reason = "stop" if i == len(self.ids) - 1 else None
            yield TokenDelta(ids=(token,), logprobs=(-0.5,), policy_version=0, finish_reason=reason)

    async def generate(self, request: Any) -> Any:
        from infra.engines.base import Completion

        await asyncio.sleep(self.token_s * len(self.ids))
        logprobs = (-0.5,) * len(self.ids)
        return Completion(ids=self.ids, logprobs=logprobs, finish_reason="stop", policy_version=0)

    async def close_session(self, session_id: str) -> None:
        return None


# Servers ----------------------------------------------------------------------------------------------------------


def bare_app(engine: PacedEngine) -> Any:
    """The engine behind as little HTTP as there can be."""
    message = {"role": "assistant", "content": TEXT}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": len(engine.ids), "total_tokens": 1 + len(engine.ids)}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "policy"}
    whole = json.dumps({**head, "choices": [choice], "usage": usage}).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        kind = b"application/json"
        if b'"stream": true' in body:
            kind = b"text/event-stream"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if kind == b"application/json":
            await engine.generate(None)
            await send({"type": "http.response.body", "body": whole})
            return
        async for delta in engine.stream(None):
            event = json.dumps({"choices": [{"delta": {"content": str(delta.ids[0])}}]})
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


async def serve_bare(engine: PacedEngine) -> None:
    import uvicorn

    config = uvicorn.Config(
        bare_app(engine),
        port=0,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await task


async def serve_polar(engine: PacedEngine, sessions: int) -> None:
    from environments.polar.base import SessionBudget
    from environments.polar.recorder import PolarRecorder
    from environments.polar.server import serving
    from infra.engines.base import Sampling

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    plenty = SessionBudget(max_calls=10**9, max_tokens=10**12)
    with tempfile.TemporaryDirectory() as log:
        recorder = PolarRecorder(engine, Path(log))  # type: ignore[arg-type]
        async with serving(recorder):
            opened = [recorder.open(f"s{i}", sampling=Sampling(), budget=plenty) for i in range(sessions)]
            print(json.dumps({"sessions": [[e.base_url, e.api_key] for e in opened]}), flush=True)
            await stop.wait()
        stats = {"fsyncs": recorder.log.fsync_count, "fsync_s": recorder.log.fsync_s}
        print(json.dumps(stats), flush=True)


# Client -----------------------------------------------------------------------------------------------------------


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
    """What a harness sends: a history that grows by an answer and an observation a turn."""

    def __init__(self, number: int) -> None:
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
        self.messages += [said, {"role": "tool", "tool_call_id": f"c{turn}", "content": OBSERVATION}]


async def pairs(bare: Target, proxies: Sequence[Target], *, stream: bool) -> list[tuple[float, float]]:
    """Interleaved (bare, proxy) latencies over one conversation for each of `proxies`; first byte if `stream`."""
    found = []
    ours = Connection(bare)
    for number, target in enumerate(proxies):
        conversation, theirs = Conversation(number), Connection(target)
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
    queue = list(enumerate(targets))
    done = 0

    async def work() -> None:
        nonlocal done
        while queue:
            number, target = queue.pop()
            conversation, connection = Conversation(number), Connection(target)
            for turn in range(TURNS):
                await connection.post(conversation.body(stream=False))
                done += 1
                conversation.take(turn)
            if connection.streams is not None:
                connection.streams[1].close()

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(workers)))
    return done / (time.perf_counter() - begun)


# The run ----------------------------------------------------------------------------------------------------------


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds."""
    ordered = sorted(values)
    return {f"p{q}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * q // 100)], 3) for q in (50, 95, 99)}


class Server:
    """A child process that prints one JSON line when it is ready, and maybe one when it is told to stop."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, __file__, *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())

    def stop(self) -> dict[str, Any]:
        self.process.terminate()
        out, _ = self.process.communicate(timeout=60)
        return json.loads(out.splitlines()[-1]) if out.strip() else {}


def latency(folder: str, *, sessions: int, conversations: int, token_ms: float, stream: bool) -> dict[str, Any]:
    """Added latency at a number of concurrent sessions, gross and net of the mean fsync."""
    bare = Server("serve-bare", "--folder", folder, "--token-ms", str(token_ms))
    polar = Server(
        "serve-polar", "--folder", folder, "--token-ms", str(token_ms), "--sessions", str(sessions * conversations)
    )
    targets = [Target.of(url, key) for url, key in polar.ready["sessions"]]

    async def run() -> list[tuple[float, float]]:
        shares = [targets[i::sessions] for i in range(sessions)]
        rows = await asyncio.gather(*(pairs(Target.of(bare.ready["url"]), s, stream=stream) for s in shares))
        return [pair for row in rows for pair in row]

    found = asyncio.run(run())
    stats = polar.stop()
    bare.stop()
    fsync_s = stats["fsync_s"] / max(1, stats["fsyncs"])
    added = [proxy - direct for direct, proxy in found]
    net = added if stream else [x - fsync_s for x in added]
    return {
        "sessions": sessions,
        "calls": len(found),
        "measured": "first streamed byte" if stream else "whole answer",
        "direct_ms": quantiles([d for d, _ in found]),
        "proxy_ms": quantiles([p for _, p in found]),
        "added_gross_ms": quantiles(added),
        "added_net_ms": quantiles(net),
        "mean_fsync_ms": round(1000 * fsync_s, 3),
        "fsyncs": stats["fsyncs"],
    }


LITELLM_CONFIG = """
model_list:
  - model_name: policy
    litellm_params: {{model: openai/policy, api_base: {url}/v1, api_key: x}}
litellm_settings: {{telemetry: false, drop_params: true}}
"""


def free_port() -> int:
    """A port that was free a moment ago."""
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until something listens. Raises RuntimeError when the process ended first."""
    import socket

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"litellm ended with code {process.returncode} before it listened")
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"litellm did not listen within {timeout_s} s")


def litellm_run(binary: str, bare_url: str, workers: int, conversations: int) -> dict[str, Any]:
    """LiteLLM's proxy before the same engine: throughput, and added latency at one session."""
    port = free_port()
    quiet = {"DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(LITELLM_CONFIG.format(url=bare_url))
        command = [binary, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        with open(os.devnull, "wb") as null:
            process = subprocess.Popen(command, stdout=null, stderr=null, env={**os.environ, **quiet})
        try:
            wait_for(port, process, 300)
            target = Target.of(f"http://127.0.0.1:{port}")
            asyncio.run(pairs(Target.of(bare_url), [target], stream=False))  # warm up
            found = asyncio.run(pairs(Target.of(bare_url), [target] * 4, stream=False))
            rate = asyncio.run(throughput([target] * conversations, workers))
        finally:
            process.terminate()
            process.wait(timeout=60)
    added = quantiles([proxy - direct for direct, proxy in found])
    return {"requests_per_s": round(rate, 1), "added_ms_1_session": added}


def compare_throughput(folder: str, litellm: str | None, *, workers: int, conversations: int) -> dict[str, Any]:
    """Requests a second with an engine that takes no time."""
    bare = Server("serve-bare", "--folder", folder, "--token-ms", "0")
    polar = Server("serve-polar", "--folder", folder, "--token-ms", "0", "--sessions", str(conversations))
    targets = [Target.of(url, key) for url, key in polar.ready["sessions"]]
    bare_targets = [Target.of(bare.ready["url"])] * conversations
    result: dict[str, Any] = {
        "workers": workers,
        "calls": conversations * TURNS,
        "bare_requests_per_s": round(asyncio.run(throughput(bare_targets, workers)), 1),
        "polar_requests_per_s": round(asyncio.run(throughput(targets, workers)), 1),
    }
    polar.stop()
    if litellm is not None:
        result["litellm"] = litellm_run(litellm, bare.ready["url"], workers, conversations)
        result["times_litellm"] = round(result["polar_requests_per_s"] / result["litellm"]["requests_per_s"], 2)
    bare.stop()
    return result


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run."""
    from fakes import make_tiny_folder

    with tempfile.TemporaryDirectory() as scratch:
        folder = str(make_tiny_folder(Path(scratch) / "model", vocab=512, layers=1, hidden=32))
        few = args.quick
        return {
            "machine": {"cpus": os.cpu_count(), "load": os.getloadavg(), "python": platform.python_version()},
            "latency_1": latency(folder, sessions=1, conversations=4 if few else 25, token_ms=0.3, stream=False),
            "latency_64": latency(folder, sessions=64, conversations=1 if few else 2, token_ms=15, stream=False),
            "first_byte_1": latency(folder, sessions=1, conversations=2 if few else 8, token_ms=3, stream=True),
            "throughput_64": compare_throughput(folder, args.litellm, workers=64, conversations=64 if few else 128),
            "load_after": os.getloadavg(),
        }


def main() -> None:
    """Run a server for the benchmark, or the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", default="measure", choices=["measure", "serve-bare", "serve-polar"])
    parser.add_argument("--folder")
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument("--sessions", type=int, default=1)
    parser.add_argument("--litellm", help="the litellm executable of an environment of its own")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.mode == "serve-bare":
        asyncio.run(serve_bare(PacedEngine(Path(args.folder), args.token_ms / 1000)))
    elif args.mode == "serve-polar":
        asyncio.run(serve_polar(PacedEngine(Path(args.folder), args.token_ms / 1000), args.sessions))
    else:
        text = json.dumps(measure(args), indent=1)
        print(text)
        if args.out is not None:
            args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
