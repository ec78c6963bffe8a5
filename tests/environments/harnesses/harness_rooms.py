"""A room for one rollout: forced engine, recorder on a unix socket, boxes that hold the harness."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from polar_fakes import STOP, ScriptedEngine

from environments.harnesses.equipped_boxes import boxes_for
from environments.polar.recorder import PolarRecorder
from environments.rollout import RolloutRequest, RolloutRoom, roll_out
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.suites.service_repair.suite import ServiceRepair
from environments.types import Trajectory
from infra.engines.base import GenerateRequest, Sampling
from infra.engines.forced import ForcedEngine
from infra.engines.local import LocalEngine

SUITE = ServiceRepair()
MAIN_LINE, ORDINAL = 20, 0xFFFF


def says(thought: str, name: str, arguments: Mapping[str, Any]) -> str:
    """A turn of the tiny model: a thought, then one tool call."""
    call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<think>\n{thought}\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


def answers(texts: Sequence[str]) -> Callable[[GenerateRequest], str | None]:
    """The main agent says these in turn, however often it is asked again; calls beside the work get a title."""

    def script(request: GenerateRequest) -> str | None:
        if request.call_index >> MAIN_LINE:
            return "A title"
        at = request.call_index & ORDINAL
        return texts[at] if at < len(texts) else None

    return script


class Memory:
    """A trajectory log that keeps the states it is given."""

    def __init__(self) -> None:
        self.states: dict[str, bytes | None] = {}

    def find(self, rollout_id: str) -> Trajectory | None:
        return None

    def add(self, trajectory: Trajectory, final_state: bytes | None) -> None:
        self.states[trajectory.rollout_id] = final_state


def forced(folder: Path, texts: Sequence[str]) -> ForcedEngine:
    """The policy says `texts`, and their log-probabilities are its own."""
    return ForcedEngine(LocalEngine(folder), answers(texts))


def replayed(folder: Path, texts: Sequence[str]) -> ScriptedEngine:
    """No model at all: the ids of `texts`, each with a log-probability that names its token and place."""
    script = answers(texts)
    return ScriptedEngine(folder, lambda request: f"{script(request)}{STOP}", max_context=131_072)


@asynccontextmanager
async def room_for(harness, engine, tmp_path: Path, *, max_tokens: int = 400):
    """(room, engine) of a rollout under `harness`."""
    recorder = PolarRecorder(engine, tmp_path / "calls")
    try:
        async with boxes_for(harness, BubblewrapProvider(), recorder) as boxes:
            sampling = Sampling(max_tokens=max_tokens)
            room = RolloutRoom(
                suite=SUITE, harness=harness, boxes=boxes, recorder=recorder, log=Memory(), sampling=sampling
            )
            yield room, engine
    finally:
        await recorder.aclose()
        await engine.aclose()


async def one_rollout(room: RolloutRoom, task) -> Trajectory:
    return await roll_out(RolloutRequest(group_id="g", task=task, index=0), room)


async def worst_gap(engine, trajectory: Trajectory) -> float:
    """The largest difference between a recorded log-probability and the one that a plain pass gives now, in nats."""
    gaps = [0.0]
    for chain in trajectory.chains:
        ids = [i for s in chain.segments for i in s.ids]
        again = (float("nan"), *await engine.score(ids))
        at = 0
        for segment in chain.segments:
            if segment.trainable:
                gaps += [abs(a - b) for a, b in zip(segment.logprobs, again[at : at + len(segment.ids)], strict=True)]
            at += len(segment.ids)
    return max(gaps)
