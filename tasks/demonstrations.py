"""Demonstrations: the suite's own noisy demonstrator, driven through the one path that every rollout takes.

scripted engine -> recorder -> harness -> real box -> chains: so that a warm start sees the very tokens that rollouts
will see.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from environments.actions import BASH_TOOL
from environments.harnesses.tool_loop import SYSTEM_PROMPT, render_observation
from environments.rollout import GroupRequest
from environments.sandboxes.base import CommandResult, Sandbox, SandboxProvider, SandboxSpec, StateChange
from environments.suites.base import Suite
from environments.suites.service_repair.demonstrations import Demonstrator, FinalAnswer, Move, Rates, Seen
from environments.types import TaskSpec
from infra.engines.base import GenerateRequest

JSON_PREFIX = '{"name": "bash", "arguments": {"command": "'
JSON_SUFFIX = '"}}'
PREFIX = "demo-"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationConfig:
    """How noisy the demonstrator is; see `Rates`. `seed` draws its mistakes."""

    error_rate: float = 0.25
    verify_rate: float = 0.3
    recover_rate: float = 0.4
    haste: float = 0.35
    seed: int = 0

    @property
    def rates(self) -> Rates:
        """As the demonstrator takes them."""
        return Rates(
            error_rate=self.error_rate,
            verify_rate=self.verify_rate,
            recover_rate=self.recover_rate,
            haste=self.haste,
        )


def completion_text(move: Move) -> str:
    """The move in the chat template's own form, without the end token."""
    think = f"<think>\n{move.thought}\n</think>\n\n"
    if isinstance(move, FinalAnswer):
        return think + json.dumps({"answer": move.answer})
    call = json.dumps({"name": "bash", "arguments": {"command": move.command}}, ensure_ascii=False)
    return f"{think}<tool_call>\n{call}\n</tool_call>"


class WatchedBoxes:
    """A provider that remembers, by label, what each box was told and what it answered."""

    def __init__(self, boxes: SandboxProvider) -> None:
        self._boxes = boxes
        self.name = boxes.name
        self.not_covered = boxes.not_covered
        self.history: dict[str, list[Seen]] = defaultdict(list)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """See `SandboxProvider.start`."""
        return _WatchedBox(await self._boxes.start(spec), self.history[spec.label])

    async def sweep(self) -> int:
        """See `SandboxProvider.sweep`."""
        return await self._boxes.sweep()


class _WatchedBox:
    def __init__(self, box: Sandbox, history: list[Seen]) -> None:
        self._box = box
        self._history = history

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        result = await self._box.run(command, timeout_s=timeout_s)
        self._history.append(Seen(command, result.output))
        return result

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self._box.put(path, data, mode=mode)

    async def get(self, path: str) -> bytes:
        return await self._box.get(path)

    async def export_state(self) -> bytes:
        return await self._box.export_state()

    async def import_state(self, state: bytes) -> None:
        await self._box.import_state(state)

    async def diff(self, state: bytes) -> tuple[StateChange, ...]:
        return await self._box.diff(state)

    async def stop(self) -> None:
        await self._box.stop()


class Script:
    """What the forced engine says: the demonstrator's next move, given what its box has shown so far."""

    def __init__(self, boxes: WatchedBoxes, config: DemonstrationConfig) -> None:
        self._boxes = boxes
        self._config = config
        self._demonstrators: dict[str, Demonstrator] = {}

    def __call__(self, request: GenerateRequest) -> str:
        """The text that the policy is made to say in answer to `request`."""
        task_id = request.rollout_id.removeprefix(PREFIX).rsplit("-", 1)[0]
        if task_id not in self._demonstrators:
            rng = random.Random(f"{self._config.seed}:{task_id}")
            self._demonstrators[task_id] = Demonstrator(rng, self._config.rates)
        return completion_text(self._demonstrators[task_id].next_move(self._boxes.history[task_id]))


def demonstration_requests(tasks: Iterable[TaskSpec]) -> tuple[GroupRequest, ...]:
    """One demonstration of each task."""
    return tuple(GroupRequest(group_id=f"{PREFIX}{t.task_id}", task=t, size=1) for t in tasks)


async def plain_text(
    tasks: Iterable[TaskSpec], suite: Suite, boxes: SandboxProvider, config: DemonstrationConfig
) -> Iterator[str]:
    """What is said and shown in demonstrations of `tasks`: the text that a tokenizer is learnt from."""
    texts: list[str] = []
    for task in tasks:
        demonstrator = Demonstrator(random.Random(f"{config.seed}:{task.task_id}"), config.rates)
        texts.append(task.instruction)
        history: list[Seen] = []
        box = await boxes.start(suite.box(task))
        try:
            await box.import_state(suite.initial_state(task))
            while len(history) < task.limits.max_turns:
                move = demonstrator.next_move(history)
                texts.append(completion_text(move).replace(JSON_PREFIX, "\n").replace(JSON_SUFFIX, "\n"))
                if isinstance(move, FinalAnswer):
                    break
                result = await box.run(move.command)
                texts.append(render_observation(result))
                history.append(Seen(move.command, result.output))
        finally:
            await box.stop()
    return iter(texts)


def protocol_phrases() -> tuple[str, ...]:
    """The constant text of every conversation, a token each: the tool header's lines and the call's JSON frame."""
    import renderers.qwen3 as qwen3

    frame = (JSON_PREFIX, JSON_SUFFIX, '{"answer": "', '"}')
    header = [line for line in (qwen3._TOOLS_HEADER + qwen3._TOOLS_FOOTER).split("\n") if len(line) > 12]
    return (*frame, *header, SYSTEM_PROMPT, json.dumps(BASH_TOOL))
