"""The local engine keeps the whole contract, and its own promises about slots, chunks and folders."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from contract import BitwiseContract, EngineContract, collect, gather, random_ids
from fakes import make_tiny_folder

from infra.engines.base import EngineError
from infra.engines.local import LocalSettings

make_request = EngineContract().request


class TestLocalEngine(BitwiseContract):
    @pytest.fixture
    def engine(self, make_local, tiny_folder):
        return make_local(tiny_folder)

    @pytest.fixture
    def make_engine(self, make_local, tiny_folder):
        return lambda: make_local(tiny_folder)


async def test_settings_change_no_bit(make_local, tiny_folder):
    requests = [make_request(f"r{i}", random_ids(i, 10 + 37 * i)) for i in range(6)]
    usual = await gather(make_local(tiny_folder), requests)
    for settings in ({"chunk_tokens": 7}, {"num_slots": 2}, {"num_slots": 1, "chunk_tokens": 200}, {"num_threads": 2}):
        assert await gather(make_local(tiny_folder, settings=settings), requests) == usual


async def test_an_evicted_session_goes_on_with_the_same_bits(make_local, tiny_folder):
    roomy, narrow = make_local(tiny_folder), make_local(tiny_folder, settings={"num_slots": 2})
    for engine in (roomy, narrow):
        prompt, engine_ids = random_ids(1, 50), []
        for turn in range(3):
            completion = await engine.generate(make_request("s", prompt, call_index=turn))
            engine_ids.append(completion)
            prompt += [*completion.ids, *random_ids(2 + turn, 10)]
            await gather(engine, [make_request(f"evict{turn}{i}", random_ids(9 + i, 30)) for i in range(4)])
        if engine is roomy:
            expected = engine_ids
    assert engine_ids == expected


async def test_two_calls_of_one_session_at_once_do_not_disturb_each_other(make_local, tiny_folder):
    requests = [
        make_request("main", random_ids(1, 60), session="s"),
        make_request("side", random_ids(2, 60), session="s"),
    ]
    together = await gather(make_local(tiny_folder), requests)
    assert together == [await make_local(tiny_folder).generate(r) for r in requests]


async def test_a_long_prompt_does_not_hold_up_a_call_that_is_decoding(make_local, tiny_folder):
    engine = make_local(tiny_folder, settings={"chunk_tokens": 16})
    stream = engine.stream(make_request("first", random_ids(1, 5), max_tokens=100))
    await anext(stream)
    long = asyncio.create_task(engine.generate(make_request("long", random_ids(2, 480), max_tokens=1)))
    seen = 0
    while not long.done():
        seen += len((await anext(stream)).ids)
    await stream.aclose()
    assert seen >= 20  # 480 tokens in chunks of 16 are 30 steps, each of which draws a token for the other call


async def test_a_short_prompt_overtakes_a_long_one(make_local, tiny_folder):
    engine = make_local(tiny_folder, settings={"chunk_tokens": 16})
    long = asyncio.create_task(engine.generate(make_request("long", random_ids(2, 480), max_tokens=1)))
    await asyncio.sleep(0)
    short = asyncio.create_task(engine.generate(make_request("short", random_ids(3, 8), max_tokens=1)))
    done, _ = await asyncio.wait([long, short], return_when=asyncio.FIRST_COMPLETED)
    assert done == {short}
    await long


async def test_closing_the_engine_ends_running_calls_with_abort(make_local, tiny_folder):
    engine = make_local(tiny_folder)
    stream = engine.stream(make_request("open", random_ids(1, 5), max_tokens=500))
    first = await anext(stream)
    await engine.aclose()
    rest = await collect(stream)
    assert first.finish_reason is None
    assert rest[-1].finish_reason == "abort"


async def test_an_id_outside_the_vocabulary_is_refused(make_local, tiny_folder):
    with pytest.raises(ValueError, match="id 320 is outside the vocabulary of 320"):
        await make_local(tiny_folder).generate(make_request("wrong", [1, 320, 2]))


async def test_weights_of_another_shape_are_refused_and_the_old_ones_kept(make_local, tiny_folder, tmp_path):
    engine = make_local(tiny_folder)
    before = await engine.generate(make_request("kept", random_ids(1, 20)))
    wider = make_tiny_folder(tmp_path / "wider", hidden=192)
    with pytest.raises(EngineError, match="other shapes"):
        await engine.load_weights(wider, 1)
    assert await engine.generate(make_request("kept", random_ids(1, 20))) == before


async def test_weights_that_are_not_finite_fail_the_call_as_ours(make_local, tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = shutil.copytree(tiny_folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    engine = make_local(tiny_folder)
    await engine.load_weights(broken, 1)
    with pytest.raises(EngineError, match="not finite"):
        await engine.generate(make_request("nan", random_ids(1, 20)))
    with pytest.raises(EngineError, match="failed"):
        await engine.generate(make_request("later", random_ids(1, 20)))


def test_a_missing_folder_is_refused(make_local, tmp_path):
    with pytest.raises(EngineError, match=r"has no config\.json; want a Hugging Face folder"):
        make_local(tmp_path / "nothing")


def test_a_folder_without_weights_is_refused(make_local, tiny_folder, tmp_path):
    half = shutil.copytree(tiny_folder, tmp_path / "half")
    (half / "model.safetensors").unlink()
    with pytest.raises(EngineError, match="does not load"):
        make_local(half)


def test_a_truncated_weights_file_is_refused(make_local, tiny_folder, tmp_path):
    half = shutil.copytree(tiny_folder, tmp_path / "half")
    content = (half / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(EngineError, match="does not load"):
        make_local(half)


def test_a_context_longer_than_the_model_was_made_for_is_refused(make_local, tiny_folder):
    with pytest.raises(ValueError, match=r"max_context is 4096; .* was made for 512 positions"):
        make_local(tiny_folder, max_context=4096)


def test_settings_below_one_are_refused():
    with pytest.raises(ValueError, match="num_slots is 0; want at least 1"):
        LocalSettings(num_slots=0)
