"""Which calls go on from which: echoes of equal meaning do not split a chain, and what does split it has a name."""

from __future__ import annotations

import copy
import json

import pytest
from polar_fakes import BASH, STOP, ScriptedEngine, call_text, chain_text, in_turn, recorder_for, talking

from environments.polar.base import SessionBudget


async def two_turns(tmp_path, tiny_folder, rendering, change):
    """A thought and a tool call, then a second turn over a history that `change` has laid hands on."""
    engine = ScriptedEngine(tiny_folder, in_turn(call_text('echo "é"  ', "look first"), "fine" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        talker.messages[0]["content"] = "Mend it. cch=a1b2; be brief"
        await talker.ask("The service is down.")
        talker.result("out")
        messages, tools = copy.deepcopy(talker.messages), copy.deepcopy(talker.tools)
        changed = change(messages, tools)
        talker.tools = changed[1]
        response = await talker.post(changed[0])
        assert response.status_code == 200, response.text
        return await recorder.close("r1"), engine


def reorder_keys(messages, tools):
    return [dict(reversed(m.items())) for m in messages], [json.loads(json.dumps(t, sort_keys=True)) for t in tools]


def reserialise(messages, tools):
    function = messages[2]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=2, ensure_ascii=True)
    return messages, tools


def drop_reasoning(messages, tools):
    del messages[2]["reasoning_content"]
    return messages, tools


def trim_reasoning(messages, tools):
    messages[2]["reasoning_content"] += "\n"
    return messages, tools


def block_lists(messages, tools):
    for m in messages:
        if m.get("content"):
            m["content"] = [{"type": "text", "text": m["content"], "cache_control": {"type": "ephemeral"}}]
    return messages, tools


def nulls_and_ids(messages, tools):
    messages[2] |= {"content": None, "refusal": None, "audio": None, "id": "msg_9", "name": None}
    messages[2]["tool_calls"][0]["id"] = messages[3]["tool_call_id"] = "call_mine"
    return messages, tools


def new_nonce(messages, tools):
    messages[0]["content"] = "Mend it. cch=ffff0; be brief"
    return messages, tools


def outer_space(messages, tools):
    messages[0]["content"] += "\n"
    messages[1]["content"] = " " + messages[1]["content"]
    return messages, tools


def cache_marks_on_tools(messages, tools):
    tools[0]["cache_control"] = {"type": "ephemeral"}
    return messages, tools


@pytest.mark.parametrize(
    "change",
    [
        reorder_keys,
        reserialise,
        drop_reasoning,
        trim_reasoning,
        block_lists,
        nulls_and_ids,
        new_nonce,
        outer_space,
        cache_marks_on_tools,
    ],
)
async def test_an_echo_of_equal_meaning_does_not_split_the_chain(tmp_path, tiny_folder, rendering, change):
    recording, engine = await two_turns(tmp_path, tiny_folder, rendering, change)
    assert [c.cause for c in recording.calls] == ["root", "continuation"]
    (chain,) = recording.chains
    sampled = engine.encode(call_text('echo "é"  ', "look first"))
    assert list(chain.segments[1].ids) == sampled
    first = list(engine.requests[0].prompt_ids)
    assert list(engine.requests[1].prompt_ids)[: len(first) + len(sampled)] == first + sampled
    assert chain_text(rendering, chain).count("cch=") == 1


def edit_question(messages, tools):
    messages[1]["content"] = "The database is down."
    return messages, tools


def edit_arguments(messages, tools):
    messages[2]["tool_calls"][0]["function"]["arguments"] = '{"command": "rm -rf /"}'
    return messages, tools


def edit_reasoning(messages, tools):
    messages[2]["reasoning_content"] = "another thought"
    return messages, tools


def other_tools(messages, tools):
    tools[0]["function"]["description"] = "Another tool."
    return messages, tools


@pytest.mark.parametrize("change", [edit_question, edit_arguments, edit_reasoning, other_tools])
async def test_a_history_of_another_meaning_splits_the_chain(tmp_path, tiny_folder, rendering, change):
    recording, _ = await two_turns(tmp_path, tiny_folder, rendering, change)
    first, second = recording.chains
    assert (first.fork_cause, first.role) == ("root", "main")
    assert second.fork_cause in ("rewritten", "compacted")
    assert second.role == "main"
    assert [s.trainable for s in second.segments] == [False, True]


async def test_a_summary_in_place_of_the_history_is_a_compaction(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        for i in range(3):
            talker.result(f"out {i}")
            await talker.ask()
        talker.messages = [*talker.messages[:1], {"role": "user", "content": "Go on from this summary: ..."}]
        await talker.ask()
        talker.result("out")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [c.fork_cause for c in recording.chains] == ["root", "compacted"]
    assert [len(c.segments) for c in recording.chains] == [8, 4]
    assert recording.chains[1].parent_chain_id == recording.chains[0].chain_id


async def test_a_helper_with_its_own_prompt_is_a_sub_agent(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        main = talker.messages
        talker.messages = [{"role": "system", "content": "You explore."}, {"role": "user", "content": "Find it."}]
        await talker.ask()
        talker.result("found")
        await talker.ask()
        talker.messages = main
        talker.result("the helper says: found")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [(c.role, c.fork_cause, len(c.segments)) for c in recording.chains] == [
        ("main", "root", 4),
        ("sub_agent", "sub_agent", 4),
    ]


async def test_a_helper_with_the_same_prompt_is_known_once_the_first_agent_goes_on(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        main = talker.messages
        talker.messages = [main[0], {"role": "user", "content": "A part of the work."}]
        await talker.ask()
        talker.messages = main
        talker.result("done")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [(c.role, c.fork_cause) for c in recording.chains] == [("main", "root"), ("sub_agent", "sub_agent")]
    assert recording.calls[1].agent_id != recording.calls[0].agent_id


@pytest.mark.parametrize("words", ["fix it", "Go."])
@pytest.mark.parametrize("title_first", [True, False])
async def test_a_title_call_is_a_side_call_whichever_comes_first(tmp_path, tiny_folder, rendering, title_first, words):
    engine = ScriptedEngine(tiny_folder, lambda r: "A title" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        title = [
            {"role": "system", "content": "You make a title of it."},
            {"role": "user", "content": words},
        ]

        async def ask_title():
            talker.tools = []
            await talker.post(title)
            talker.tools = [BASH]

        if title_first:
            await ask_title()
        await talker.ask("Go.")
        if not title_first:
            await ask_title()
        await talker.ask("More.")
        recording = await recorder.close("r1")
    assert sorted((c.role, c.fork_cause) for c in recording.chains) == [("main", "root"), ("side", "side")]
    assert {c.role for c in recording.calls if c.cause == "continuation"} == {"main"}


TEXT_TASKS = [
    "Fix the page title in index.html",
    "Users are entitled to a refund; repair refund.py",
    "Summarize this coding conversation in under a page and write it to notes.md",
    "Add the field isNewTopic to the form",
]


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "Reply with one bash block."}]])
@pytest.mark.parametrize("task", TEXT_TASKS)
async def test_an_agent_without_tools_is_the_main_one_whatever_its_task_speaks_of(
    tmp_path, tiny_folder, rendering, task, system
):
    engine = ScriptedEngine(tiny_folder, lambda r: "```bash\nls\n```" + STOP)
    two = SessionBudget(max_calls=2, max_tokens=1000)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=(), budget=two) as talker:
        talker.messages = list(system)
        await talker.ask(task)
        await talker.ask("out")
        assert (await talker.post([*talker.messages, {"role": "user", "content": "out"}])).status_code == 403
        recording = await recorder.close("r1")
    assert [(c.role, c.agent_id, c.cause) for c in recording.calls] == [
        ("main", "main", "root"),
        ("main", "main", "continuation"),
    ]
    assert [(c.fork_cause, c.role) for c in recording.chains] == [("root", "main")]
    assert [t.action for t in recording.turns] == ["ls"]


SIDE_REQUESTS = [
    ("You are a title generator. You output ONLY a thread title. Nothing else.", "Go."),
    ("", "Generate a title for this conversation:\nGo."),
    ("You are Claude Code.\nAnalyze if this message indicates a new conversation topic. If it does, ...", "Go."),
    ("Summarize this coding conversation in under 50 characters.", "Please write a 5-10 word title for ..."),
    ("Generate a concise, sentence-case title (3-7 words) that captures the goal of this session.", "Go."),
    ("", "quota"),
]


@pytest.mark.parametrize(("system", "text"), SIDE_REQUESTS)
@pytest.mark.parametrize("tools", [[BASH], []])
async def test_a_side_call_of_a_known_harness_is_one_beside_any_agent(
    tmp_path, tiny_folder, rendering, system, text, tools
):
    engine = ScriptedEngine(tiny_folder, lambda r: "A title" + STOP)
    side = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": text}]
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=()) as talker:
        await talker.post(side)
        talker.tools = tools
        await talker.ask("Go.")
        await talker.ask("More.")
        recording = await recorder.close("r1")
    assert [(c.role, c.cause) for c in recording.calls] == [
        ("side", "side"),
        ("main", "root"),
        ("main", "continuation"),
    ]


@pytest.mark.parametrize("tools", [[BASH], []])
@pytest.mark.parametrize(("system", "text"), [*SIDE_REQUESTS[:2], ("You explore.", "Find it.")])
async def test_a_helper_without_tools_that_gets_a_second_turn_is_a_sub_agent(
    tmp_path, tiny_folder, rendering, system, text, tools
):
    engine = ScriptedEngine(tiny_folder, lambda r: "found" + STOP)
    four = {"budget": SessionBudget(max_calls=4, max_tokens=1000)}
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=tools, **four) as talker:
        await talker.ask("Go.")
        main, talker.tools = talker.messages, []
        talker.messages = [{"role": "system", "content": system}] if system else []
        await talker.ask(text)
        await talker.ask("Look again.")
        talker.messages, talker.tools = main, tools
        await talker.ask("The helper says: found.")
        assert (await talker.post([*talker.messages, {"role": "user", "content": "More."}])).status_code == 403
        recording = await recorder.close("r1")
    assert [(c.role, c.fork_cause, len(c.segments)) for c in recording.chains] == [
        ("main", "root", 4),
        ("sub_agent", "sub_agent", 4),
    ]
    assert {c.agent_id.partition("-")[0] for c in recording.calls} == {"main", "sub_agent"}


@pytest.mark.parametrize(("tools", "role"), [([BASH], "side"), ([], "sub_agent")])
async def test_a_one_shot_helper_without_tools_works_only_beside_an_agent_without_tools(
    tmp_path, tiny_folder, rendering, tools, role
):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=tools) as talker:
        await talker.ask("Go.")
        talker.tools = []
        for text in ("Is `ls` safe?", "Is `pwd` safe?"):
            await talker.post([{"role": "system", "content": "You judge commands."}, {"role": "user", "content": text}])
        recording = await recorder.close("r1")
    assert [c.role for c in recording.calls] == ["main", role, role]
    assert {c.role for c in recording.chains} == {"main", role}


async def test_a_task_that_opens_like_a_side_call_is_the_main_agents_once_it_goes_on(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    two = SessionBudget(max_calls=2, max_tokens=1000)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=(), budget=two) as talker:
        await talker.ask("Generate a title for this conversation: it is the one in talk.txt")
        await talker.ask("out")
        assert (await talker.post([*talker.messages, {"role": "user", "content": "out"}])).status_code == 403
        recording = await recorder.close("r1")
    assert [(c.role, c.agent_id, c.fork_cause) for c in recording.chains] == [("main", "main", "root")]


async def test_each_agent_has_an_engine_session_and_call_indexes_of_its_own(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        for i in range(150):  # of 2046 marks, so that two are nearly always equal
            system = {"role": "system", "content": f"You are helper {i}."}
            await talker.post([system, {"role": "user", "content": "Find it."}])
    assert len({r.session_id for r in engine.requests}) == len({r.call_index for r in engine.requests}) == 151


async def test_the_same_prompt_again_is_a_sibling_with_randomness_of_its_own(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, in_turn("one" + STOP, "two" + STOP, "three" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        talker.messages.append({"role": "user", "content": "Go."})
        first = (await talker.post(talker.messages)).json()["choices"][0]["message"]["content"]
        second = (await talker.post(talker.messages)).json()["choices"][0]["message"]["content"]
        talker.messages.append({"role": "assistant", "content": second})
        await talker.ask("More.")
        recording = await recorder.close("r1")
    assert (first, second) == ("one", "two")
    assert [c.cause for c in recording.calls] == ["root", "resample", "continuation"]
    indexes = [r.call_index for r in engine.requests]
    assert len(set(indexes)) == 3
    assert [(c.fork_cause, len(c.segments)) for c in recording.chains] == [("root", 2), ("resample", 4)]


async def test_of_two_samples_the_one_that_goes_on_keeps_the_chain(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("out")
        await talker.post(talker.messages)
        await talker.ask()
        talker.result("out")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [(c.fork_cause, len(c.segments)) for c in recording.chains] == [("root", 6), ("resample", 2)]
    assert recording.chains[1].parent_chain_id == recording.chains[0].chain_id
    assert recording.chains[0].segments[3].call_id != recording.calls[1].call_id


async def test_an_answer_that_the_harness_drops_is_a_leaf_and_trains_once(tmp_path, tiny_folder, rendering):
    broken = "<tool_call>\n{oops}\n</tool_call>" + STOP
    engine = ScriptedEngine(tiny_folder, in_turn(call_text("ls"), broken, call_text("pwd"), "done" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("out")
        dropped = await talker.ask()
        assert dropped["content"] == "<tool_call>\n{oops}\n</tool_call>"
        talker.messages.pop()
        await talker.ask("That was no call; try again.")
        talker.result("/srv")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [c.cause for c in recording.calls] == ["root", "continuation", "continuation", "continuation"]
    assert [len(c.segments) for c in recording.chains] == [6, 2]
    assert sum(c.num_trainable for c in recording.chains) == sum(len(c.completion_ids) for c in recording.calls)


async def test_call_indexes_tell_the_place_in_the_conversation_and_not_the_order_of_arrival(
    tmp_path, tiny_folder, rendering
):
    async def indexes(folder, helper_first):
        engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
        async with recorder_for(engine, folder, rendering) as recorder, talking(recorder) as talker:
            helper = [{"role": "system", "content": "You explore."}, {"role": "user", "content": "Find it."}]
            await talker.ask("Go.")
            if helper_first:
                await talker.post(helper)
            talker.result("out")
            await talker.ask()
            if not helper_first:
                await talker.post(helper)
        return {tuple(r.prompt_ids): r.call_index for r in engine.requests}

    early, late = await indexes(tmp_path / "a", True), await indexes(tmp_path / "b", False)
    assert early == late
    assert sorted(early.values())[:2] == [0, 1]


async def test_a_cut_answer_is_closed_in_the_tail_and_stays_in_its_chain(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "a long answer that will be cut" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, max_tokens=4) as talker:
        await talker.ask("Go.")
        await talker.ask("More.")
        recording = await recorder.close("r1")
    assert [c.finish_reason for c in recording.calls] == ["length", "length"]
    (chain,) = recording.chains
    assert rendering.text(chain.segments[2].ids).startswith("<|im_end|>\n<|im_start|>user")
