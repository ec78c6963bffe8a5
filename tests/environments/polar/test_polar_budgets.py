"""What one rollout may use, and that nothing it does with it becomes another's trouble or ours."""

from __future__ import annotations

import asyncio

import pytest
from polar_fakes import PLENTY, STOP, ScriptedEngine, recorder_for, talking

from environments.polar.base import SessionBudget

LONG = "one two three four five six seven eight nine ten" + STOP
TITLE = "Generate a title for this conversation:"


def user(text):
    return [{"role": "user", "content": text}]


async def at_once(engine, talker, texts, **more):
    """Post all these while the engine is silent; the answers once it has spoken."""
    engine.may_speak.clear()
    asked = [asyncio.create_task(talker.post(user(text), **more)) for text in texts]
    while len(engine.requests) < 1:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    engine.may_speak.set()
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wish", [3, 400])
async def test_calls_side_by_side_keep_within_the_budget_of_tokens(tmp_path, tiny_folder, rendering, stream, wish):
    engine = ScriptedEngine(tiny_folder, lambda r: LONG)
    budget = SessionBudget(max_calls=100, max_tokens=10)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        texts = [f"q{i}" for i in range(8)]
        answers = await at_once(engine, talker, texts, stream=stream, max_tokens=wish)
        assert {a.status_code for a in answers} == {200, 429}
        again = [await talker.post(user(text), max_tokens=wish) for text in texts]
        assert again[-1].status_code == 403
        recording = await recorder.close("r1")
    assert sum(len(c.completion_ids) for c in recording.calls) == 10
    assert (recording.broken, recording.budget_hit) == ((), True)


async def test_tokens_that_a_call_did_not_need_are_there_for_the_next(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    budget = SessionBudget(max_calls=100, max_tokens=10)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        assert [(await talker.post(user(f"q{i}"))).status_code for i in range(6)] == [200] * 5 + [403]


async def test_a_rollout_that_floods_is_turned_away_by_its_own_bound_and_the_fault_is_its_own(
    tmp_path, tiny_folder, rendering
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    places = {"max_running": 4, "max_waiting": 8}
    async with (
        recorder_for(engine, tmp_path, rendering, **places) as recorder,
        talking(recorder, "r1") as flood,
        talking(recorder, "r2") as fellow,
    ):
        asked = asyncio.create_task(at_once(engine, flood, [f"q{i}" for i in range(13)]))
        while len(engine.requests) < 4:
            await asyncio.sleep(0.01)
        served = asyncio.create_task(fellow.ask("work"))
        assert sorted(a.status_code for a in await asked) == [200] * 6 + [429] * 7
        assert (await served)["content"] == "ok"
        recordings = [await recorder.close(name) for name in ("r1", "r2")]
    assert [(len(r.calls), r.broken) for r in recordings] == [(6, ()), (1, ())]


async def test_a_full_house_of_others_is_ours(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    places = {"max_running": 1, "max_waiting": 1}
    async with recorder_for(engine, tmp_path, rendering, **places) as recorder:
        async with talking(recorder, "r1") as one, talking(recorder, "r2") as two, talking(recorder, "r3") as late:
            engine.may_speak.clear()
            asked = [asyncio.create_task(t.post(user("x"))) for t in (one, two)]
            while recorder.gate.running + recorder.gate.waiting < 2:
                await asyncio.sleep(0.01)
            assert (await late.post(user("x"))).json()["error"]["code"] == "overloaded"
            engine.may_speak.set()
            assert [a.status_code for a in await asyncio.gather(*asked)] == [200, 200]
        assert [len((await recorder.close(name)).broken) for name in ("r1", "r2", "r3")] == [0, 0, 1]


@pytest.mark.parametrize("tools_first", [True, False])
async def test_side_calls_have_a_bound_of_their_own(tmp_path, tiny_folder, rendering, tools_first):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    budget = SessionBudget(max_calls=3, max_tokens=500)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        tools = talker.tools if tools_first else []
        talker.tools = tools
        await talker.ask("work")
        talker.tools = []
        titles = [(await talker.post(user(f"{TITLE} {i}"))).status_code for i in range(5)]
        talker.tools = tools
        work = [(await talker.ask("go on"))["content"] for _ in range(2)]
        assert (titles, work) == ([200, 200, 200, 403, 403], ["ok", "ok"])
        assert (await talker.post([*talker.messages, *user("more")])).status_code == 403
        recording = await recorder.close("r1")
    assert [c.role for c in recording.calls] == ["main", *["side"] * 3, "main", "main"]


async def test_a_title_that_runs_beside_the_first_call_leaves_it_its_tokens(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: LONG)
    budget = SessionBudget(max_calls=9, max_tokens=160)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        engine.may_speak.clear()
        tools, talker.tools = talker.tools, []
        title = asyncio.create_task(talker.post(user(f"{TITLE} x")))
        while not engine.requests:
            await asyncio.sleep(0.01)
        talker.tools = tools
        engine.may_speak.set()
        await talker.ask("work")
        await title
    assert [r.sampling.max_tokens for r in engine.requests] == [20, 140]


async def test_what_a_retry_joins_costs_nothing_however_full_the_rollout_is(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with (
        recorder_for(engine, tmp_path, rendering, max_per_session=1) as recorder,
        talking(recorder, budget=PLENTY) as talker,
    ):
        answers = await at_once(engine, talker, ["x", "x", "y"])
        assert [a.status_code for a in answers] == [200, 200, 429]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_time_of_a_rollout_cuts_the_call_that_runs_and_refuses_the_next(
    tmp_path, tiny_folder, rendering, stream
):
    engine = ScriptedEngine(tiny_folder, lambda r: LONG)
    budget = SessionBudget(max_calls=9, max_tokens=1000, wall_time_s=0.5)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        await asyncio.sleep(0.6)  # the clock starts with the first call
        engine.may_speak.clear()
        answers = [await talker.post(user(text), stream=stream) for text in ("x", "x", "y")]
        recording = await recorder.close("r1")
    assert [(a.status_code, a.json()["error"]["code"]) for a in answers] == [(403, "budget_exhausted")] * 3
    assert [(c.state, c.finish_reason) for c in recording.calls] == [("cancelled", "abort")]
    assert len(engine.aborted) == 1
    assert (recording.budget_hit, recording.broken, recording.chains) == (True, (), ())


async def test_the_time_of_a_rollout_cuts_a_stream_in_its_midst_with_the_reason(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: LONG * 9, token_s=0.05)
    budget = SessionBudget(max_calls=9, max_tokens=1000, wall_time_s=0.5)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, budget=budget) as talker:
        cut = await talker.post(user("x"), stream=True)
        recording = await recorder.close("r1")
    assert (cut.status_code, "budget_exhausted" in cut.text) == (200, True)
    assert 0 < len(recording.calls[0].completion_ids) < 12
    assert recording.budget_hit


async def test_the_time_of_a_rollout_counts_while_a_call_waits_for_its_place(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: LONG)
    budget = SessionBudget(max_calls=9, max_tokens=1000, wall_time_s=0.3)
    async with (
        recorder_for(engine, tmp_path, rendering, max_running=1, max_waiting=4) as recorder,
        talking(recorder, "r1") as first,
        talking(recorder, "r2", budget=budget) as second,
    ):
        engine.may_speak.clear()
        held = asyncio.create_task(first.post(user("x")))
        while not engine.requests:
            await asyncio.sleep(0.01)
        assert (await second.post(user("x"))).status_code == 403
        engine.may_speak.set()
        assert (await held).status_code == 200
        assert (recorder.gate.running, recorder.gate.waiting) == (0, 0)
