"""The engine protocol: token ids in, token ids out. No text crosses this seam.

Every engine passes the same contract suite (tests/infra/engines/contract.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

FinishReason = Literal["stop", "length", "abort"]


class EngineError(RuntimeError):
    """The engine failed. It is ours, never the agent's: no reward, no gradient, no evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one completion is drawn. `temperature` 0 is greedy; `top_k` -1 and `top_p` 1 are off.

    `logprobs` that an engine returns are of the distribution that these fields define (after temperature and
    truncation), in nats; for greedy decoding they are of the temperature-1 distribution.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_tokens: int = 512
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 10:
            raise ValueError(f"sampling.temperature is {self.temperature}; want a number in [0, 10]")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p is {self.top_p}; want a number in (0, 1]")
        if self.top_k == 0 or self.top_k < -1:
            raise ValueError(f"sampling.top_k is {self.top_k}; want -1 (off) or a positive number")
        if self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens is {self.max_tokens}; want at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One call. Randomness is a pure function of (sampling.seed, rollout_id, call_index, token index).

    `session_id` names the conversation whose KV cache may be kept: an engine may reuse the cached prefix where
    `prompt_ids` extends what it holds, and must answer the same ids where it does not.
    `forced_text` is read by the `forced` engine only: the text whose ids it answers instead of sampling.
    """

    request_id: str
    session_id: str
    rollout_id: str
    call_index: int
    prompt_ids: Sequence[int]
    sampling: Sampling
    forced_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """Tokens as they arrive: `ids[n]` and `logprobs[n]` (nats). The last delta carries `finish_reason`."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished call: `ids[C]` (the stop token included when one was drawn), `logprobs[C]` in nats."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: int


class Engine(Protocol):
    """Serves one policy. Safe for concurrent calls from one event loop."""

    @property
    def model_folder(self) -> Path:
        """The HF folder with the tokenizer and chat template that the ids belong to."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next token will be drawn from."""
        ...

    @property
    def max_context(self) -> int:
        """The most tokens (prompt + completion) that a call may have."""
        ...

    def stream(self, request: GenerateRequest) -> AsyncIterator[TokenDelta]:
        """Tokens as they are drawn. Closing the iterator aborts. Raises EngineError.

        A completion that reaches `max_context` is cut there with `length`; a prompt that leaves no room for one
        token raises ValueError.
        """
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """The whole completion. Cancelling the awaiting task aborts the generation."""
        ...

    async def score(self, ids: Sequence[int]) -> tuple[float, ...]:
        """`logprobs[L-1]` in nats, temperature 1: entry t is log p(ids[t+1] | ids[:t+1]) by a plain forward pass."""
        ...

    async def close_session(self, session_id: str) -> None:
        """Forget the session's cache. Unknown sessions are ignored."""
        ...

    async def load_weights(self, folder: Path, version: int) -> None:
        """Wait for running calls, swap the weights, drop all caches. `version` must exceed the present one."""
        ...

    async def aclose(self) -> None:
        """Stop; running calls end with finish_reason `abort`. Idempotent."""
        ...
