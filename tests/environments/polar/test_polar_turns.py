"""Turns rebuilt from the wire, and the renderings that a folder gets."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
from polar_fakes import STOP, ScriptedEngine, call_text, in_turn, recorder_for, talking

from environments.polar.messages import Message, ToolCall
from environments.polar.rendering import RendererError, load_rendering
from environments.polar.tool_results import as_command_result, exit_code_of
from environments.polar.turns import command_of


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<returncode>127</returncode>\n<output>\nno\n</output>", 127),
        ("Exit code 1\nls: cannot access", 1),
        ("Command: ls\nExit Code: 2\nSignal: (none)", 2),
        ("Chunk ID: a\nProcess exited with code 3\nOutput:", 3),
        ("no such file\n[exit 4]", 4),
        ('{"output": "x", "metadata": {"exit_code": 5}}', 5),
        ("bash: line 1: frob: command not found", 127),
        ("half a file\n/bin/sh: 1: ./run: Permission denied\n", 126),
        ("bash: -c: line 2: syntax error: unexpected end of file", 2),
        ("bash: line 1: frob: command not found\nbut the rest ran", None),
        ("all is well", None),
        ("the manual says: an exit code is a number", None),
    ],
)
def test_exit_codes_are_read_in_the_words_of_known_harnesses(text, code):
    assert exit_code_of(text) == code


@pytest.mark.parametrize(
    ("text", "timed_out"),
    [
        ("half\n[timed out]", True),
        ("Command timed out after 20s", True),
        ("<metadata>\nbash tool terminated command after exceeding timeout 20000 ms\n</metadata>", True),
        ("2026-01-01 WARN the request timed out after 3 tries", False),
    ],
)
def test_a_time_out_is_told_from_a_log_that_speaks_of_one(text, timed_out):
    assert as_command_result(text, 1.0).timed_out is timed_out


@pytest.mark.parametrize(
    ("name", "arguments", "command"),
    [
        ("bash", {"command": "ls"}, "ls"),
        ("shell", {"command": ["bash", "-lc", "ls | wc"]}, "ls | wc"),
        ("exec_command", {"cmd": "pwd"}, "pwd"),
        ("Read", {"file_path": "/x"}, 'Read {"file_path": "/x"}'),
    ],
)
def test_commands_are_found_in_the_arguments_of_known_shells(name, arguments, command):
    assert command_of(name, json.dumps(arguments)) == command


async def test_turns_are_rebuilt_from_tool_results_dropped_answers_and_replies(tmp_path, tiny_folder, rendering):
    broken = "<tool_call>\n{oops}\n</tool_call>" + STOP
    engine = ScriptedEngine(
        tiny_folder, in_turn(call_text("ls", "first"), broken, call_text("cat x"), '{"answer": "done"}' + STOP)
    )
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("a b\n[exit 2]")
        await talker.ask()
        await talker.ask("No call was seen.")
        talker.result("text")
        await talker.ask()
        recording = await recorder.close("r1")
    calls = [c.call_id for c in recording.calls]
    told = [(t.call_id, t.thought, t.action, t.observation, t.exit_code, t.error_class) for t in recording.turns]
    assert told == [
        (calls[0], "first", "ls", "a b\n[exit 2]", 2, None),
        (calls[1], "", "<tool_call>\n{oops}\n</tool_call>", "No call was seen.", None, "parse"),
        (calls[2], "", "cat x", "text", None, None),
    ]
    assert [t.index for t in recording.turns] == [0, 1, 2]
    assert {t.source for t in recording.turns} == {"wire"}


async def test_an_answer_that_the_harness_drops_is_a_turn_and_what_it_says_then_is_all_that_is_observed(
    tmp_path, tiny_folder, rendering
):
    refused = call_text("ls", "so").replace("command", "cmd")
    engine = ScriptedEngine(
        tiny_folder,
        in_turn(call_text("pwd"), refused, "<tool_call>\n{oops\n</tool_call>" + STOP, call_text("ls"), "bye" + STOP),
    )
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("/srv")
        for complaint in ("Missing 'command'.", "No call was seen."):
            await talker.ask()
            del talker.messages[-1]
            talker.messages.append({"role": "user", "content": complaint})
        await talker.ask()
        talker.result("a b")
        await talker.ask()
        recording = await recorder.close("r1")
    assert [(t.thought, t.action, t.observation, t.error_class) for t in recording.turns] == [
        ("", "pwd", "/srv", None),
        ("so", 'bash {"cmd": "ls"}', "Missing 'command'.", "parse"),
        ("", "<tool_call>\n{oops\n</tool_call>", "No call was seen.", "parse"),
        ("", "ls", "a b", None),
    ]
    assert [c.fork_cause for c in recording.chains] == ["root", "rewritten", "rewritten"]


async def test_a_compacted_history_says_nothing_of_the_call_before_it(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls"))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.messages[1:] = [{"role": "user", "content": "So far: nothing. Go on."}]
        await talker.ask()
        recording = await recorder.close("r1")
    assert recording.turns == ()


async def test_two_calls_of_one_answer_are_two_turns_in_any_order_of_results(tmp_path, tiny_folder, rendering):
    both = call_text("one").removesuffix(STOP) + "\n" + call_text("two")
    engine = ScriptedEngine(tiny_folder, in_turn(both, "done" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        message = await talker.ask("Go.")
        first, second = message["tool_calls"]
        talker.messages.append({"role": "tool", "tool_call_id": second["id"], "content": "of two"})
        talker.messages.append({"role": "tool", "tool_call_id": first["id"], "content": "of one"})
        await talker.ask()
        recording = await recorder.close("r1")
    assert [(t.action, t.observation) for t in recording.turns] == [("one", "of one"), ("two", "of two")]
    assert len(recording.chains) == 1


async def test_a_harness_that_speaks_in_fenced_text_has_turns_too(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, in_turn("I look.\n```bash\nls /\n```" + STOP, "bye" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder, tools=()) as talker:
        await talker.ask("Go.")
        await talker.ask("<returncode>0</returncode>")
        recording = await recorder.close("r1")
    assert [(t.action, t.exit_code) for t in recording.turns] == [("ls /", 0)]


def test_the_tiny_folder_is_found_to_speak_qwen3_by_comparing_ids(rendering):
    assert type(rendering._renderer).__name__ == "Qwen3Renderer"
    assert len(rendering.stop_token_ids) == 2


def test_a_renderer_file_decides_and_changes_the_digest(tmp_path, tiny_folder, rendering):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "renderer.json").write_text('{"name": "default", "tool_parser": "qwen3", "reasoning_parser": "think"}')
    other = load_rendering(folder)
    assert type(other._renderer).__name__ == "DefaultRenderer"
    assert other.digest != rendering.digest
    with pytest.raises(RendererError, match="want a Hugging Face model folder"):
        load_rendering(tmp_path)
    (folder / "renderer.json").write_text('{"name": "qwen9"}')
    with pytest.raises(RendererError, match="qwen9"):
        load_rendering(folder)


HISTORY = [
    Message(role="system", text="Mend it."),
    Message(role="user", text="Go."),
    Message(
        role="assistant",
        text="",
        reasoning="hm",
        tool_calls=(ToolCall(call_id="c", name="bash", arguments={"command": "ls"}),),
    ),
]


def test_a_template_without_a_bridge_gets_its_tail_by_difference(tmp_path, tiny_folder, rendering):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "renderer.json").write_text('{"name": "default", "tool_parser": "qwen3", "reasoning_parser": "think"}')
    plain = load_rendering(folder)
    result = [Message(role="tool", text="out", tool_call_id="c")]
    prompt = rendering.prompt(HISTORY[:2], [])
    said = plain._tokenizer.encode(call_text("ls", "hm"), add_special_tokens=False)
    assert plain.tail(prompt, said, result, []) is None
    tail = plain.tail_by_difference(HISTORY, result, [], said)
    assert tail == rendering.tail(prompt, said, result, [])
    cut = plain.tail_by_difference(HISTORY, result, [], said[:-1])
    assert cut == [said[-1], *tail]


PLAIN_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def test_a_model_whose_template_no_renderer_was_made_for_holds_its_conversation_in_one_chain(
    tmp_path, tiny_folder, plain
):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(PLAIN_CHAT)
    found = load_rendering(folder)
    text = "<|im_start|>system\nMend it.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    assert type(found._renderer).__name__ == "DefaultRenderer"
    assert found.prompt(HISTORY[:2], []) == plain.encode(text, add_special_tokens=False)
    engine = ScriptedEngine(folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path / "log", found) as recorder, talking(recorder) as talker:
        for question in ("Go.", "On.", "Done?"):
            await talker.ask(question)
        recording = await recorder.close("r1")
    assert [(c.fork_cause, len(c.segments)) for c in recording.chains] == [("root", 6)]


MARKERS_OF_OTHERS = [
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|begin_of_image|>", "<|end_of_image|>"),
]
RESULT = Message(role="tool", text="out", tool_call_id="c")


@pytest.mark.parametrize("new", [[RESULT], [Message(role="user", text="And now?")], [RESULT, RESULT]])
@pytest.mark.parametrize("said", ["ok", "<think>\nhm\n</think>\n\nok", "<think>\nhm"])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "llama-3", "glm-4.5", "glm-5", "nemotron-3"])
def test_a_tail_is_what_the_bridge_adds_to_the_whole_history(tmp_path, tiny_folder, plain, name, closed, said, new):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    tokenizer = copy.deepcopy(plain)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKERS_OF_OTHERS})
    tokenizer.save_pretrained(folder)
    (folder / "renderer.json").write_text(json.dumps({"name": name, "thinking_retention": "all"}))
    rendering = load_rendering(folder)
    prompt = rendering.prompt([*HISTORY[:2], *[HISTORY[2], RESULT] * 3], [])
    answer = tokenizer.encode(said, add_special_tokens=False) + [rendering.stop_token_ids[0]] * closed
    wire = [{"role": m.role, "content": m.text, "tool_call_id": m.tool_call_id} for m in new]
    whole = rendering._renderer.bridge_to_next_turn(prompt, answer, wire)
    tail = rendering.tail(prompt, answer, new, [])
    assert tail == (None if whole is None else whole.token_ids[len(prompt) + len(answer) :])


def test_a_template_that_drops_old_reasoning_is_no_tail_and_says_why(tmp_path, tiny_folder):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "renderer.json").write_text('{"name": "qwen3", "thinking_retention": "tool_cycle"}')
    strict = load_rendering(folder)
    question = [Message(role="user", text="And now?")]
    said = strict._tokenizer.encode(call_text("ls", "hm"), add_special_tokens=False)
    assert strict.tail(strict.prompt(HISTORY[:2], []), said, question, []) is None
    assert strict.tail_by_difference(HISTORY, question, [], said) == "template"


async def test_a_fork_by_the_template_is_named_and_trains_each_token_once(tmp_path, tiny_folder):
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    (folder / "renderer.json").write_text('{"name": "qwen3", "thinking_retention": "tool_cycle"}')
    engine = ScriptedEngine(folder, lambda r: call_text("ls", "hm"))
    async with recorder_for(engine, tmp_path / "log", load_rendering(folder)) as recorder, talking(recorder) as talker:
        await talker.ask("Go.")
        talker.result("out")
        await talker.ask()
        talker.result("out")
        await talker.ask("And now?")
        recording = await recorder.close("r1")
    assert [(c.fork_cause, len(c.segments)) for c in recording.chains] == [("root", 4), ("template", 2)]
    assert recording.chains[1].parent_chain_id == recording.chains[0].chain_id
    assert sum(c.num_trainable for c in recording.chains) == sum(len(c.completion_ids) for c in recording.calls)
