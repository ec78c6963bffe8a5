"""A proxy that is killed in mid-stream has on record all that any harness has received."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import httpx
import pytest
from polar_fakes import PLENTY, STOP, ScriptedEngine, call_text

from environments.polar.recorder import PolarRecorder
from environments.polar.recording import build_recording
from environments.polar.replay import open_logs
from environments.polar.server import serving
from infra.engines.base import Sampling

ROLLOUTS = ("r1", "r2")


def serve(connection, folder: Path, logs: Path, rendering, seed: int) -> None:
    """The process that will be killed."""

    async def main() -> None:
        rng = random.Random(seed)
        texts = [call_text("ls -la /srv", "look first"), "The port is wrong, I think." + STOP]
        engine = ScriptedEngine(folder, lambda r: rng.choice(texts), token_s=0.001)
        recorder = PolarRecorder(engine, logs, rendering=rendering)
        async with serving(recorder):
            opened = [recorder.open(name, sampling=Sampling(max_tokens=400), budget=PLENTY) for name in ROLLOUTS]
            connection.send([(e.base_url, e.api_key) for e in opened])
            await asyncio.Event().wait()

    asyncio.run(main())


class Received:
    """What one harness has seen of each of its calls: text so far, and whether the end came."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.lines = 0

    async def talk(self, url: str, key: str) -> None:
        messages = [{"role": "user", "content": "Go."}]
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
            while True:
                seen = {"text": "", "calls": [], "done": False}
                self.calls.append(seen)
                body = {"messages": messages, "stream": True, "tools": []}
                async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                    async for line in answer.aiter_lines():
                        take(seen, line)
                        self.lines += bool(line)
                messages += [{"role": "assistant", "content": seen["text"] or None, "tool_calls": seen["calls"]}]
                messages += [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in seen["calls"]]
                messages += [{"role": "user", "content": "more"}]


def take(seen: dict, line: str) -> None:
    if line == "data: [DONE]":
        seen["done"] = True
    if not line.startswith("data: {"):
        return
    for choice in json.loads(line[6:])["choices"]:
        seen["text"] += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                seen["calls"].append({k: call[k] for k in ("id", "type", "function")})
            else:
                seen["calls"][-1]["function"]["arguments"] += call["function"]["arguments"]


async def talk_until_killed(process, endpoints, lines: int) -> list[Received]:
    """Talk until that many lines have come; then the proxy dies."""
    harnesses = [Received() for _ in endpoints]
    talks = [asyncio.create_task(h.talk(*e)) for h, e in zip(harnesses, endpoints, strict=True)]
    while sum(h.lines for h in harnesses) < lines:
        await asyncio.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    results = await asyncio.gather(*talks, return_exceptions=True)
    assert all(isinstance(r, httpx.TransportError) for r in results), results
    return harnesses


def kill_once(tiny_folder, rendering, logs: Path, seed: int) -> int:
    """One life of a proxy; the number of calls that were cut by its death."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, tiny_folder, logs, rendering, seed))
    process.start()
    assert ours.poll(60)
    lines = random.Random(seed).randrange(2, 90)
    harnesses = asyncio.run(talk_until_killed(process, ours.recv(), lines))
    process.join()
    found = open_logs(logs)
    cut = 0
    for name, harness in zip(ROLLOUTS, harnesses, strict=True):
        recording = build_recording(found.rollouts[name])
        for seen, call in zip(harness.calls, recording.calls, strict=False):
            text = rendering.text(call.completion_ids)
            assert seen["text"] in text
            assert all(json.loads(c["function"]["arguments"] or "{}")["command"] in text for c in seen["calls"][:-1])
            if seen["done"]:
                assert call.state == "complete"
            cut += call.state == "broken"
        finished = sum(seen["done"] for seen in harness.calls)
        assert finished <= sum(c.state == "complete" for c in recording.calls)
        assert len(recording.calls) >= sum(bool(s["text"] or s["calls"]) for s in harness.calls)
        assert bool(recording.broken) == any(c.state == "broken" for c in recording.calls)
    return cut


def test_five_kills_in_mid_stream_lose_nothing_that_was_received(tmp_path, tiny_folder, rendering):
    cut = sum(kill_once(tiny_folder, rendering, tmp_path / str(seed), seed) for seed in range(5))
    assert cut > 0, "no kill hit a running call: the test shows nothing"


@pytest.mark.slow
def test_fifty_kills_in_mid_stream_lose_nothing_that_was_received(tmp_path, tiny_folder, rendering):
    cut = sum(kill_once(tiny_folder, rendering, tmp_path / str(seed), seed) for seed in range(100, 150))
    assert cut > 20
