"""What `polar_overhead.py` measures: one paced engine behind the recorder, behind nothing, and behind LiteLLM.

Each is a process of its own on loopback that prints one JSON line when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

TEXT = "<think>\nlook at the log first\n</think>\n\n<tool_call>\n" + json.dumps(
    {"name": "bash", "arguments": {"command": "tail -n 20 log/service.log"}}
)
SAID = TEXT + "\n</tool_call><|im_end|>"


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


def bare_app(engine: PacedEngine) -> Any:
    """The engine behind as little HTTP as there can be: what a direct call costs over the same transport."""
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
        streams = b'"stream": true' in body or b'"stream":true' in body
        kind = b"text/event-stream" if streams else b"application/json"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        if not streams:
            await engine.generate(None)
            await send({"type": "http.response.body", "body": whole})
            return
        async for delta in engine.stream(None):
            event = json.dumps({**head, "choices": [{"index": 0, "delta": {"content": str(delta.ids[0])}}]})
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    return app


async def serve_bare(engine: PacedEngine) -> None:
    """Serve `bare_app` until told to stop."""
    import uvicorn

    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so that asyncio sets TCP_NODELAY
    sock.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        bare_app(engine), log_level="warning", access_log=False, lifespan="off", ws="none", timeout_keep_alive=75
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.01)
    print(json.dumps({"url": f"http://127.0.0.1:{sock.getsockname()[1]}"}), flush=True)
    await task


async def serve_polar(engine: PacedEngine, sessions: int) -> None:
    """Serve the recorder with `sessions` open rollouts; on SIGTERM say what its fsyncs took."""
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
        p50_s = statistics.median(recorder.log.recent_fsyncs_s)
        print(json.dumps({"fsyncs": recorder.log.fsync_count, "fsync_p50_s": p50_s}), flush=True)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process and its living children have used."""
    import psutil

    process = psutil.Process(pid)
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return sum(t.user + t.system for t in times)


class Server:
    """One of the above as a child process."""

    def __init__(self, kind: str, folder: str, token_ms: float, sessions: int = 1) -> None:
        words = [kind, "--folder", folder, "--token-ms", str(token_ms), "--sessions", str(sessions)]
        self.process = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())

    def cpu_s(self) -> float:
        """Its CPU seconds so far: what it costs whatever else runs on the machine."""
        return cpu_s(self.process.pid)

    def stop(self) -> dict[str, Any]:
        """End it; its last line, if it prints one."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=60)
        return json.loads(out.splitlines()[-1]) if out.strip() else {}


LITELLM_CONFIG = """
model_list:
  - model_name: policy
    litellm_params: {{model: openai/policy, api_base: {url}/v1, api_key: x}}
litellm_settings: {{telemetry: false, drop_params: true}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}  # loopback; a key would only slow it
"""
QUIET = {"DO_NOT_TRACK": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"litellm ended with code {process.returncode} before it listened")
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RuntimeError(f"litellm did not listen within {timeout_s} s")


@contextmanager
def litellm_proxy(binary: str, upstream: str) -> Iterator[tuple[str, int]]:
    """LiteLLM's proxy before `upstream`; its URL and process id. Raises RuntimeError when it does not come up."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(LITELLM_CONFIG.format(url=upstream))
        command = [binary, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        with open(os.devnull, "wb") as null:
            process = subprocess.Popen(command, stdout=null, stderr=null, env={**os.environ, **QUIET})
        try:
            _wait_for(port, process, 1800)
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()
            process.wait(timeout=60)


def main() -> None:
    """Run one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["bare", "polar"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--token-ms", type=float, default=0.0)
    parser.add_argument("--sessions", type=int, default=1)
    args = parser.parse_args()
    engine = PacedEngine(args.folder, args.token_ms / 1000)
    asyncio.run(serve_bare(engine) if args.kind == "bare" else serve_polar(engine, args.sessions))


if __name__ == "__main__":
    main()
