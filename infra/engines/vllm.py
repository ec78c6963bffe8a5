"""The `vllm` engine: a vLLM server over HTTP, ids in and ids out, with the log-probabilities it sampled from.

Start the server so that it says what the policy really did, on a private network (its control endpoints ask for no
password):

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --generation-config vllm --logprobs-mode processed_logprobs

On a CPU add `--no-enable-chunked-prefill` (vLLM 0.32 dies of a seeded call whose prompt it takes in two parts), and
untie the head from the embedding: it is packed once and would stay the old one when weights are swapped, which the
trainer's comparison with the engine refuses.

Differences from the local engine: randomness is seeded per call by the same key but depends on the server's batch,
so a resumed run may draw other tokens; top-k and top-p change the distribution, and processed log-probabilities
follow it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from infra.engines.base import Completion, EngineError, FinishReason, GenerateRequest, TokenDelta
from infra.engines.calls import check_version, completion_room, gathered
from infra.engines.drain import DrainGate
from infra.engines.sampling import call_key

_FINISH_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmEngine:
    """Serves the policy of the server at `url` (http://host:port), which was started on `model_folder`'s weights.

    See `infra.engines.base.Engine`. `timeout_s` bounds the wait for the next token and for a weight swap. Making one
    asks the server what it serves, blocking; raises EngineError where there is none. Sessions need no closing: the
    server caches prefixes by their content.
    """

    def __init__(self, url: str, model_folder: Path, *, policy_version: int = 0, timeout_s: float = 300.0) -> None:
        self._url = url.rstrip("/")
        self._folder = model_folder
        self._version = policy_version
        self._model, self._max_context = _served_model(self._url)
        self._client = httpx.AsyncClient(
            base_url=self._url, timeout=timeout_s, limits=httpx.Limits(max_connections=None)
        )
        self._gate = DrainGate()
        self._closed = False

    @property
    def model_folder(self) -> Path:
        """The folder whose tokenizer the ids belong to."""
        return self._folder

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next token will be drawn from."""
        return self._version

    @property
    def max_context(self) -> int:
        """The server's `max_model_len`."""
        return self._max_context

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[TokenDelta, None]:
        """Tokens as the server sends them; closing the iterator closes the connection, which aborts there."""
        room = completion_room(request, self._max_context)
        async with self._gate.entered(), self._events(self._body(request, room)) as events:
            async for event in events:
                delta = _delta(event, self._version)
                yield delta
                if delta.finish_reason is not None:
                    return
        raise EngineError(f"vLLM ended the stream of request {request.request_id} without a finish reason")

    async def generate(self, request: GenerateRequest) -> Completion:
        """The whole completion."""
        async with aclosing(self.stream(request)) as deltas:
            return await gathered(deltas)

    def _body(self, request: GenerateRequest, room: int) -> dict[str, Any]:
        """Every sampling field is sent: what is left out, the server may fill in from the model's folder."""
        sampling = request.sampling
        return {
            "model": self._model,
            "prompt": list(request.prompt_ids),
            "max_tokens": room,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": call_key(sampling.seed, request.rollout_id, request.call_index) >> 1,  # vLLM wants 63 bits
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,  # the request's own stop tokens are the only ones
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "logprobs": 1,
            "return_token_ids": True,
            "stream": True,
        }

    @asynccontextmanager
    async def _events(self, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        self._refuse_if_closed()
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, (await response.aread()).decode())
                yield _server_sent(response)
        except httpx.HTTPError as error:
            raise EngineError(f"vLLM at {self._url} did not answer: {error!r}") from error

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """`logprobs[L-1]` at temperature 1, from the server's prompt log-probabilities. Needs at least 2 ids."""
        if len(ids) < 2:
            raise ValueError(f"score needs at least 2 ids, a context and a token; got {len(ids)}")
        body = {"model": self._model, "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        async with self._gate.entered():
            self._refuse_if_closed()
            answer = (await self._post("/v1/completions", body)).json()
        entries = answer["choices"][0]["prompt_logprobs"][1:]
        return tuple(float(entry[str(i)]["logprob"]) for i, entry in zip(ids[1:], entries, strict=True))

    async def close_session(self, session_id: str) -> None:
        """Nothing to do: the server evicts prefixes by itself."""

    async def load_weights(self, folder: Path, version: int) -> None:
        """Wait for running calls, pause, reload from `folder` (a path on the server's host), drop its cache, resume.

        After a failed reload the server stays paused: answers from half-loaded weights would be wrong.
        """
        check_version(self._version, version)
        self._refuse_if_closed()
        async with self._gate.closed():
            await self._control("/pause?mode=wait")  # calls of other clients end in peace too
            await self._control(
                "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder.absolute())}}
            )
            answer = await self._control("/reset_prefix_cache")
            if answer.content and not answer.json()["success"]:  # older servers answer nothing
                raise EngineError("vLLM kept its prefix cache, made by the old weights; it stays paused, restart it")
            await self._control("/resume")
            self._version = version

    async def _control(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            return await self._post(path, body)
        except _NotFound as error:
            raise EngineError(f"vLLM has no {path}; start it with VLLM_SERVER_DEV_MODE=1 to swap weights") from error

    async def _post(self, path: str, body: dict[str, Any] | None) -> httpx.Response:
        try:
            response = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"vLLM at {self._url}{path} did not answer: {error!r}") from error
        if response.status_code != 200:
            raise _refusal(response.status_code, response.text)
        return response

    async def aclose(self) -> None:
        """Close the connections, which aborts what runs. The server goes on."""
        self._closed = True
        await self._client.aclose()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineError("the vllm engine was closed; connect again")


class _NotFound(EngineError):
    """The server has no such endpoint."""


def _served_model(url: str) -> tuple[str, int]:
    """The name and the longest context of the model that the server at `url` serves."""
    try:
        response = httpx.get(f"{url}/v1/models", timeout=30.0)
    except httpx.HTTPError as error:
        raise EngineError(f"vLLM at {url}/v1/models did not answer: {error!r}; is it running?") from error
    if response.status_code != 200:
        raise _refusal(response.status_code, response.text)
    model = response.json()["data"][0]
    return model["id"], model["max_model_len"]


async def _server_sent(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _delta(event: dict[str, Any], policy_version: int) -> TokenDelta:
    if "error" in event:
        raise EngineError(f"vLLM failed in mid-answer: {event['error']}")
    choice = event["choices"][0]
    ids = choice.get("token_ids")
    if ids is None:
        raise EngineError("vLLM sent no token_ids; want a version that knows return_token_ids (0.10.2 or later)")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
    if len(ids) != len(logprobs):
        raise EngineError(f"vLLM sent {len(ids)} ids with {len(logprobs)} logprobs; each token needs its own")
    return TokenDelta(
        ids=tuple(ids),
        logprobs=tuple(float(x) for x in logprobs),
        policy_version=policy_version,
        finish_reason=_FINISH_REASONS.get(choice.get("finish_reason")),
    )


def _refusal(status: int, text: str) -> EngineError:
    kind = _NotFound if status == 404 else EngineError
    return kind(f"vLLM answered {status}: {text[:500]}")
