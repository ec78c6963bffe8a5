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


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPrompts:
    """One complete call: the ids it was sampled under, those that a plain server renders, and its answer's."""

    call_id: str
    kept: tuple[int, ...]
    plain: tuple[int, ...]
    completion: tuple[int, ...]


def both_prompts(rollout: LoggedRollout, rendering: Rendering) -> Iterator[TwoPrompts]:
    """The two prompts of every complete call of a rollout."""
    for call in rollout.calls.values():
        if call.state == "complete" and len(call.ids):
            messages, tools = conversation_of(call, rollout.calls)
            yield TwoPrompts(
                call_id=call.call_id,
                kept=tuple(_prompt(call, rollout.calls)),
                plain=tuple(rendering.prompt(messages, tools)),
                completion=tuple(call.ids),
            )


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


async def deployment_gap(rollout: LoggedRollout, rendering: Rendering, engine: Engine) -> tuple[Gap, ...]:
    """The gap of every complete call of a rollout; both sides scored by `engine`, so sampling plays no part."""
    gaps = []
    for call in both_prompts(rollout, rendering):
        if call.kept == call.plain:
            gaps.append(Gap(call_id=call.call_id, same_prompt=True, differences=(0.0,) * len(call.completion)))
            continue
        ours = await _scored(engine, call.kept, call.completion)
        theirs = await _scored(engine, call.plain, call.completion)
        differences = tuple(a - b for a, b in zip(ours, theirs, strict=True))
        gaps.append(Gap(call_id=call.call_id, same_prompt=False, differences=differences))
    return tuple(gaps)
