"""The deployment gap: what a sampled answer would have been worth under the prompt that production renders.

Training sees the sampled ids of earlier turns; a plain server renders the history anew from text. The gap is the
difference of each answer's log-probabilities under the two prompts, with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from environments.polar.logged import LoggedCall, LoggedRollout, conversation_of, line_of
from environments.polar.rendering import Rendering
from infra.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One call: `differences[C]` in nats, sampled-context minus re-rendered-context; `same_prompt` if none was due."""

    call_id: str
    same_prompt: bool
    differences: tuple[float, ...]


def _prompt(call: LoggedCall, calls: Mapping[str, LoggedCall]) -> list[int]:
    ids: list[int] = []
    for step in line_of(call, calls):
        ids += step.tail_ids
        if step is not call:
            ids += step.ids
    return ids


async def _scored(engine: Engine, prompt: Sequence[int], completion: Sequence[int]) -> tuple[float, ...]:
    logprobs = await engine.score([*prompt, *completion])
    return logprobs[len(logprobs) - len(completion) :]


def _complete(rollout: LoggedRollout) -> Iterator[LoggedCall]:
    return (call for call in rollout.calls.values() if call.state == "complete" and len(call.ids))


async def deployment_gap(rollout: LoggedRollout, rendering: Rendering, engine: Engine) -> tuple[Gap, ...]:
    """The gap of every complete call of a rollout; both sides scored by `engine`, so sampling plays no part."""
    gaps = []
    for call in _complete(rollout):
        messages, tools = conversation_of(call, rollout.calls)
        kept, plain = _prompt(call, rollout.calls), rendering.prompt(messages, tools)
        if kept == plain:
            gaps.append(Gap(call_id=call.call_id, same_prompt=True, differences=(0.0,) * len(call.ids)))
            continue
        ours = await _scored(engine, kept, call.ids)
        theirs = await _scored(engine, plain, call.ids)
        differences = tuple(a - b for a, b in zip(ours, theirs, strict=True))
        gaps.append(Gap(call_id=call.call_id, same_prompt=False, differences=differences))
    return tuple(gaps)
