"""Whatever a harness does to its history, each sampled token trains once, in the context it was sampled in.

The engine of these tests says its texts in encodings that the tokenizer would not choose, so anything that is
encoded anew is seen at once; a builder that does so stands at the end and must fail the same check.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polar_fakes import BASH, STOP, ScriptedEngine, Talker, call_text, logprob_of, message_of, recorder_for, talking

from environments.types import Chain

MOVES = ("turn", "turn", "turn", "retry", "rewind", "edit", "compact", "branch", "helper", "title", "drop", "stream")


@dataclass(frozen=True)
class Row:
    """One training row: ids, what is trained, its logprobs (0 where it is not), whose call each token is of."""

    ids: Sequence[int]
    mask: Sequence[bool]
    logprobs: Sequence[float]
    calls: Sequence[str]


def row_of(chain: Chain) -> Row:
    ids, mask, logprobs, calls = [], [], [], []
    for segment in chain.segments:
        ids += segment.ids
        mask += [segment.trainable] * len(segment.ids)
        logprobs += segment.logprobs if segment.trainable else [0.0] * len(segment.ids)
        calls += [segment.call_id] * len(segment.ids)
    return Row(ids, mask, logprobs, calls)


class NonUniqueEngine(ScriptedEngine):
    """Says the script's texts byte by byte, or in the tokenizer's way, or half and half."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.said: dict[str, list[int]] = {}
        super().__init__(folder, self._say)

    def _say(self, request) -> list[int]:
        rng = self.rng
        text = rng.choice(
            (
                call_text(rng.choice(("ls -la", "cat é.txt", "echo 'a  b'")), rng.choice(("", "let me see\n\nyes"))),
                "I am done." + STOP,
                "<tool_call>\n{broken}\n</tool_call>" + STOP,
                f"<think>\nhm {rng.random()}\n</think>\n\n  The  port is wrong. " + STOP,
            )
        )
        ids = [i for piece in self._pieces(text) for i in self.encode(piece)]
        self.said[request.request_id] = ids[: request.sampling.max_tokens]
        return ids

    def _pieces(self, text: str) -> list[str]:
        """Cut between characters, but never inside a marker, so that the text keeps its meaning."""
        pieces, rest = [], text
        while rest:
            marker = next(
                (m for m in ("<think>", "</think>", "<tool_call>", "</tool_call>", STOP) if rest.startswith(m)), ""
            )
            size = len(marker) or (1 if self.rng.random() < 0.7 else 1 + rest[1:].find("<") if "<" in rest[1:] else 1)
            pieces.append(rest[: max(1, size)])
            rest = rest[max(1, size) :]
        return pieces


def echo(rng: random.Random, message: dict) -> dict:
    """The same message as some harness would send it back."""
    message = copy.deepcopy(message)
    if rng.random() < 0.3:
        message.pop("reasoning_content", None)
    for call in message.get("tool_calls", ()):
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(
            arguments, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5
        )
    if message.get("content") and rng.random() < 0.3:
        message["content"] = [{"type": "text", "text": message["content"] + "\n"}]
    if rng.random() < 0.3:
        message = {"refusal": None, **dict(reversed(message.items()))}
    return message


class Harness:
    """A harness without manners."""

    def __init__(self, talker: Talker, seed: int) -> None:
        self.talker = talker
        self.rng = random.Random(seed)
        self.system = talker.messages[0]
        self.forks = 0

    async def ask(self, messages: list[dict], **more) -> dict:
        response = await self.talker.post(messages, **more)
        assert response.status_code == 200, response.text
        return message_of(response)

    def after(self, messages: list[dict], message: dict) -> list[dict]:
        calls = message.get("tool_calls") or []
        echoed = echo(self.rng, {k: v for k, v in message.items() if v is not None})
        said = f"out {self.rng.randrange(100)}"
        results = [{"role": "tool", "tool_call_id": c["id"], "content": said} for c in calls]
        return [*messages, echoed, *(results or [{"role": "user", "content": said}])]

    async def move(self, name: str) -> None:
        talker, messages = self.talker, self.talker.messages
        if len(messages) < 2:
            messages.append({"role": "user", "content": f"Task {self.rng.randrange(100)}."})
        if name in ("turn", "stream"):
            talker.messages = self.after(messages, await self.ask(messages, stream=name == "stream"))
        elif name == "retry":
            await self.ask(messages)
            await self.ask(messages)
        elif name == "rewind":
            del messages[max(2, len(messages) - self.rng.choice((2, 4))) :]
        elif name == "edit":
            at = self.rng.randrange(1, len(messages))
            messages[at] = {**messages[at], "content": f"changed {self.rng.random()}"}
        elif name == "compact":
            talker.messages = [self.system, {"role": "user", "content": f"Summary {self.rng.random()}"}]
        elif name == "branch":
            first, second = await asyncio.gather(self.ask(messages), self.ask([*messages], max_tokens=399))
            self.after(messages, first)
            talker.messages = self.after(messages, second)
        elif name == "helper":
            helper = [{"role": "system", "content": "Explore."}, {"role": "user", "content": f"{self.rng.random()}"}]
            helper = self.after(helper, await self.ask(helper))
            await self.ask(helper)
        elif name == "title":
            talker.tools = []
            await self.ask([{"role": "user", "content": "Write a title."}])
            talker.tools = [BASH]
        elif name == "drop":
            await self.ask(messages)
            messages.append({"role": "user", "content": "No call was seen; try again."})


def check_rows(rows: Sequence[Row], engine: NonUniqueEngine) -> None:
    """Each completion trains once, as sampled, where it was sampled."""
    prompts = {r.request_id: list(r.prompt_ids) for r in engine.requests}
    seen: list[str] = []
    for row in rows:
        assert len(row.ids) == len(row.mask) == len(row.logprobs)
        start = 0
        while start < len(row.ids):
            end = start
            while end < len(row.ids) and (row.calls[end], row.mask[end]) == (row.calls[start], row.mask[start]):
                end += 1
            if row.mask[start]:
                call = row.calls[start]
                seen.append(call)
                assert list(row.ids[start:end]) == engine.said[call], "not the sampled tokens"
                assert list(row.ids[:start]) == prompts[call], "not the context it was sampled in"
                expected = [logprob_of(t, start + i) for i, t in enumerate(row.ids[start:end])]
                assert list(row.logprobs[start:end]) == expected, "a logprob stands beside another token"
            start = end
    assert sorted(seen) == sorted(engine.said), "a completion is missing or trains twice"


def play(folder: Path, rendering, moves: Sequence[str], seed: int):
    async def run():
        engine = NonUniqueEngine(folder, seed)
        with tempfile.TemporaryDirectory() as log:
            async with recorder_for(engine, Path(log), rendering) as recorder, talking(recorder) as talker:
                harness = Harness(talker, seed)
                for move in moves:
                    await harness.move(move)
                return await recorder.close("r1"), engine

    return asyncio.run(run())


SLOW_OK = settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@SLOW_OK
@given(moves=st.lists(st.sampled_from(MOVES), min_size=1, max_size=12), seed=st.integers(0, 2**16))
def test_each_sampled_token_trains_once_in_its_own_context(tiny_folder, rendering, moves, seed):
    recording, engine = play(tiny_folder, rendering, moves, seed)
    check_rows([row_of(chain) for chain in recording.chains], engine)
    assert not recording.broken
    delivered = {c.call_id: c.delivered_count for c in recording.calls}
    assert delivered == {call: len(ids) for call, ids in engine.said.items()}


@SLOW_OK
@given(moves=st.lists(st.sampled_from(("turn", "stream")), min_size=1, max_size=10), seed=st.integers(0, 2**16))
def test_a_conversation_that_only_grows_is_one_chain_however_it_is_echoed(tiny_folder, rendering, moves, seed):
    recording, _ = play(tiny_folder, rendering, moves, seed)
    assert len(recording.chains) == 1
    assert {c.cause for c in recording.calls} <= {"root", "continuation"}


@SLOW_OK
@given(moves=st.lists(st.sampled_from(MOVES), min_size=4, max_size=12), seed=st.integers(0, 2**16))
def test_parents_make_each_prompt_whole_again(tiny_folder, rendering, moves, seed):
    recording, engine = play(tiny_folder, rendering, moves, seed)
    prompts = {r.request_id: list(r.prompt_ids) for r in engine.requests}
    whole: dict[str, list[int]] = {}
    completions = {c.call_id: list(c.completion_ids) for c in recording.calls}
    for call in recording.calls:
        parent = call.parent_call_id
        before = whole[parent] + completions[parent] if parent is not None else []
        whole[call.call_id] = before + list(call.prompt_tail_ids)
    assert whole == prompts


def retokenised(chain: Chain, rendering, engine: ScriptedEngine) -> Row:
    """What a builder does that encodes the text of a conversation anew."""
    ids, mask, logprobs, calls = [], [], [], []
    for segment in chain.segments:
        again = engine.encode(rendering.text(segment.ids))
        ids += again
        mask += [segment.trainable] * len(again)
        kept = (list(segment.logprobs) + [0.0] * len(again))[: len(again)]
        logprobs += kept if segment.trainable else [0.0] * len(again)
        calls += [segment.call_id] * len(again)
    return Row(ids, mask, logprobs, calls)


def test_a_builder_that_encodes_anew_fails_the_check(tiny_folder, rendering):
    recording, engine = play(tiny_folder, rendering, ["turn"] * 6, seed=3)
    with pytest.raises(AssertionError, match="not the sampled tokens"):
        check_rows([retokenised(chain, rendering, engine) for chain in recording.chains], engine)


def test_a_builder_that_leaves_out_a_chain_fails_the_check(tiny_folder, rendering):
    recording, engine = play(tiny_folder, rendering, ["turn", "compact", "turn"], seed=4)
    with pytest.raises(AssertionError, match="missing or trains twice"):
        check_rows([row_of(chain) for chain in recording.chains[1:]], engine)
