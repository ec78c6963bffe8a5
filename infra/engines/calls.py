"""What every engine does around a call: check its lengths and versions, and gather its stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

from infra.engines.base import Completion, EngineError, GenerateRequest, TokenDelta


def completion_room(request: GenerateRequest, max_context: int) -> int:
    """The most tokens that may be answered: `max_tokens`, or what the context leaves after the prompt.

    Raises ValueError where it leaves nothing, or the prompt is empty.
    """
    length = len(request.prompt_ids)
    if not 1 <= length < max_context:
        raise ValueError(
            f"request {request.request_id}: the prompt has {length} tokens; want 1 to {max_context - 1}, "
            f"so that one more fits into the context of {max_context}"
        )
    return min(request.sampling.max_tokens, max_context - length)


def check_version(present: int, new: int) -> None:
    """Raise ValueError unless `new` weights have a greater version than the `present` ones."""
    if new <= present:
        raise ValueError(f"weights version {new} is not above the present one, {present}; versions only grow")


async def gathered(deltas: AsyncIterator[TokenDelta]) -> Completion:
    """The whole completion of a stream. Raises EngineError if it ended without a finish reason."""
    ids: list[int] = []
    logprobs: list[float] = []
    async for delta in deltas:
        ids += delta.ids
        logprobs += delta.logprobs
        if delta.finish_reason is not None:
            return Completion(
                ids=tuple(ids),
                logprobs=tuple(logprobs),
                finish_reason=delta.finish_reason,
                policy_version=delta.policy_version,
            )
    raise EngineError("the engine's stream ended without a finish reason")
