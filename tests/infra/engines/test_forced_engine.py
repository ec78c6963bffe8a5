"""The forced engine answers given texts with the policy's own log-probabilities, and keeps the rest of the contract."""

from __future__ import annotations

import asyncio

import pytest
from contract import EngineContract, collect, gather, random_ids
from transformers import AutoTokenizer

from infra.engines.base import EngineError, GenerateRequest, Sampling
from infra.engines.forced import ForcedEngine

LONG_TEXT = "look first, then mend the port in service.ini and run ./check again " * 8


def make_request(text, prompt=(1, 2, 3), **sampling):
    return GenerateRequest(
        request_id="r",
        session_id="s",
        rollout_id="o",
        call_index=0,
        prompt_ids=prompt,
        sampling=Sampling(**sampling),
        forced_text=text,
    )


@pytest.fixture
def engine(make_local, tiny_folder):
    return ForcedEngine(make_local(tiny_folder), script=lambda request: request.forced_text or None)


class TestForcedEngine(EngineContract):
    @pytest.fixture
    def engine(self, make_local, tiny_folder):
        return ForcedEngine(make_local(tiny_folder), script=lambda request: LONG_TEXT)


async def test_the_ids_are_those_of_the_text_and_end_with_the_eos_token(engine, tiny_folder):
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "bash"}\n</tool_call>'
    completion = await engine.generate(make_request(text))
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    assert list(completion.ids) == [*tokenizer.encode(text), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    assert completion.finish_reason == "stop"
    assert tokenizer.decode(completion.ids) == text + "<|im_end|>"


async def test_what_the_policy_drew_gets_the_same_bits_when_it_is_forced(make_local, tiny_folder):
    local = make_local(tiny_folder)
    for temperature in (0.6, 1.0):
        request = make_request(None, random_ids(1, 77), temperature=temperature, max_tokens=50)
        drawn = await local.generate(request)
        forced = await make_local(tiny_folder).generate_forced(request, drawn.ids)
        assert (forced.ids, forced.logprobs) == (drawn.ids, drawn.logprobs)


async def test_a_text_longer_than_max_tokens_is_cut_and_ends_with_length(engine):
    completion = await engine.generate(make_request("run ./check again", max_tokens=3))
    assert len(completion.ids) == 3
    assert completion.finish_reason == "length"


async def test_a_long_text_arrives_in_several_deltas(make_local, tiny_folder):
    engine = ForcedEngine(make_local(tiny_folder, settings={"chunk_tokens": 16}))
    deltas = await collect(engine.stream(make_request(LONG_TEXT)))
    assert len(deltas) > 3
    assert all(delta.ids for delta in deltas)


async def test_a_scripted_conversation_beside_others_gives_what_it_gives_alone(make_local, tiny_folder):
    requests = [make_request(f"answer {i}", random_ids(i, 20 + 9 * i)) for i in range(10)]
    together = await gather(ForcedEngine(make_local(tiny_folder)), requests)
    alone = [await ForcedEngine(make_local(tiny_folder)).generate(r) for r in requests[::3]]
    assert together[::3] == alone


async def test_a_request_without_a_text_is_our_fault_and_says_how_to_mend_it(engine):
    with pytest.raises(EngineError, match=r"call 0 of o\) has no forced text; set forced_text or give"):
        await engine.generate(make_request(None))


async def test_forced_tokens_under_a_truncated_distribution_are_refused(engine):
    for sampling in ({"top_p": 0.9}, {"top_k": 5}):
        with pytest.raises(ValueError, match="want top_p 1 and top_k -1"):
            await engine.generate(make_request("hello", **sampling))


def test_closing_the_forced_engine_closes_the_local_one(make_local, tiny_folder):
    local = make_local(tiny_folder)
    asyncio.run(ForcedEngine(local).aclose())
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(local.score([1, 2, 3]))
