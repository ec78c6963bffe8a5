"""A scripted engine: real ids of the folder's own tokenizer, logprobs that name their token, any fault on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from renderers.base import load_tokenizer

from environments.polar.base import SessionBudget
from environments.polar.recorder import PolarRecorder, RecorderSettings
from infra.engines.base import Completion, EngineError, GenerateRequest, Sampling, TokenDelta

STOP = "<|im_end|>"


def logprob_of(token: int, position: int) -> float:
    """A number that only this token at this place has, so that a misplaced one is seen."""
    return -(1 + token) / 1024 - position / 2**20


def call_text(command: str, thought: str = "") -> str:
    """What the tiny model says to run a command."""
    think = f"<think>\n{thought}\n</think>\n\n" if thought else ""
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    return f'{think}<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>{STOP}'


class ScriptedEngine:
    """Answers `script(request)`: a text (encoded), ids, or an exception to raise. Counts what it is asked."""

    def __init__(
        self,
        folder: Path,
        script: Callable[[GenerateRequest], str | Sequence[int] | Exception],
        *,
        max_context: int = 100_000,
        token_s: float = 0.0,
    ) -> None:
        self.model_folder = folder
        self.policy_version = 0
        self.max_context = max_context
        self.token_s = token_s
        self.may_speak = asyncio.Event()
        self.may_speak.set()
        self.speaking = 0
        self.swapped_while_speaking: list[int] = []
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.closed_sessions: list[str] = []
        self._script = script
        self._tokenizer = load_tokenizer(str(folder))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    async def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        self.requests.append(request)
        said = self._script(request)
        if isinstance(said, Exception):
            raise said
        ids = self.encode(said) if isinstance(said, str) else list(said)
        ids, start = ids[: request.sampling.max_tokens], len(request.prompt_ids)
        closed = bool(ids) and ids[-1] in request.sampling.stop_token_ids
        finished = False
        self.speaking += 1
        try:
            await self.may_speak.wait()
            for i, token in enumerate(ids):
                await asyncio.sleep(self.token_s)
                last = i == len(ids) - 1
                finished = last
                yield TokenDelta(
                    ids=(token,),
                    logprobs=(logprob_of(token, start + i),),
                    policy_version=self.policy_version,
                    finish_reason=("stop" if closed else "length") if last else None,
                )
        finally:
            self.speaking -= 1
            if not finished:
                self.aborted.append(request.request_id)

    async def generate(self, request: GenerateRequest) -> Completion:
        deltas = [delta async for delta in self.stream(request)]
        reason = deltas[-1].finish_reason if deltas else "stop"
        if reason is None:
            raise EngineError("the script ended without a finish reason")
        return Completion(
            ids=tuple(i for d in deltas for i in d.ids),
            logprobs=tuple(x for d in deltas for x in d.logprobs),
            finish_reason=reason,
            policy_version=self.policy_version,
        )

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        return tuple(logprob_of(token, i) for i, token in enumerate(ids) if i)

    async def close_session(self, session_id: str) -> None:
        self.closed_sessions.append(session_id)

    async def load_weights(self, folder: Path, version: int) -> None:
        self.swapped_while_speaking.append(self.speaking)
        self.policy_version = version

    async def aclose(self) -> None:
        return None


BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
PLENTY = SessionBudget(max_calls=100_000, max_tokens=10_000_000)


class Talker:
    """A client of one rollout over chat completions, with the conversation that it has had so far."""

    def __init__(self, client: httpx.AsyncClient, endpoint, *, system: str = "Mend it.", tools=(BASH,)) -> None:
        self.client = client
        self.endpoint = endpoint
        self.tools = list(tools)
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    async def post(self, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
        body = {"model": "policy", "messages": messages, **({"tools": self.tools} if self.tools else {}), **more}
        return await self.client.post("/v1/chat/completions", json=body)

    async def ask(self, text: str | None = None, **more: Any) -> dict[str, Any]:
        """Say something (or nothing), take the answer into the conversation, and return it."""
        if text is not None:
            self.messages.append({"role": "user", "content": text})
        response = await self.post(self.messages, **more)
        assert response.status_code == 200, response.text
        message = message_of(response)
        self.messages.append({k: v for k, v in message.items() if v is not None})
        return message

    def result(self, text: str) -> None:
        """Answer the last tool call."""
        call = self.messages[-1]["tool_calls"][0]
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def message_of(response: httpx.Response) -> dict[str, Any]:
    """The assistant message of a chat completion, whole or streamed."""
    if "event-stream" not in response.headers["content-type"]:
        return response.json()["choices"][0]["message"]
    text = response.text
    message: dict = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({k: call[k] for k in ("id", "type", "function")})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {k: v for k, v in message.items() if v}


@asynccontextmanager
async def recorder_for(engine: ScriptedEngine, folder: Path, rendering, **settings: Any):
    """A recorder that is closed in the end."""
    recorder = PolarRecorder(engine, folder, rendering=rendering, settings=RecorderSettings(**settings))
    try:
        yield recorder
    finally:
        await recorder.aclose()


@asynccontextmanager
async def talking(recorder: PolarRecorder, rollout_id: str = "r1", *, budget=PLENTY, max_tokens: int = 400, **more):
    """One open rollout and a talker in it."""
    endpoint = recorder.open(rollout_id, sampling=Sampling(max_tokens=max_tokens), budget=budget)
    headers = {"authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(
        transport=endpoint.transport, base_url=endpoint.base_url, headers=headers, timeout=30
    ) as client:
        yield Talker(client, endpoint, **more)


def in_turn(*texts: str | Exception):
    """A script that says these things in this order, whoever asks."""
    rest = iter(texts)
    return lambda request: next(rest)


def chain_text(rendering, chain) -> str:
    """All tokens of a chain as text."""
    return rendering.text([i for s in chain.segments for i in s.ids])


def scope_of(url: str, key: str) -> dict[str, Any]:
    """The ASGI scope of a POST to `url`."""
    path = httpx.URL(url).path
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")],
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "scheme": "http",
        "server": ("polar", 80),
        "client": ("test", 1),
        "root_path": "",
    }
