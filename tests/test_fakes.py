"""The shipped fake folder is a real Hugging Face folder that speaks Qwen3's chat format."""

from __future__ import annotations

import pytest
from fakes import make_tiny_folder
from renderers import Qwen3Renderer
from transformers import AutoModelForCausalLM, AutoTokenizer

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls -la"}}}
CONVERSATIONS = {
    "a question": [{"role": "user", "content": "Why does ./check fail?"}],
    "a tool turn": [
        {"role": "system", "content": "Mend the service."},
        {"role": "user", "content": "Start."},
        {"role": "assistant", "content": "Look.", "reasoning_content": "first look", "tool_calls": [CALL]},
        {"role": "tool", "content": "config  start.sh"},
        {"role": "tool", "content": "é ✓"},
    ],
    "an old thought": [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nTwo."},
        {"role": "user", "content": "Three."},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("tools", [None, [TOOL]])
@pytest.mark.parametrize("generate", [False, True])
def test_the_template_and_the_qwen3_renderer_give_the_same_ids(tokenizer, name, tools, generate):
    messages = CONVERSATIONS[name]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=generate, tokenize=False)
    rendered = Qwen3Renderer(tokenizer).render_ids(messages, tools=tools, add_generation_prompt=generate)
    assert tokenizer.decode(rendered) == text
    assert tokenizer.encode(text, add_special_tokens=False) == rendered


def test_every_string_survives_the_tokenizer(tokenizer):
    text = "tab\t newline\n é ✓ 🙂 <not a tag>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_same_seed_writes_the_same_weights(folder, tmp_path):
    again = make_tiny_folder(tmp_path / "again")
    other = make_tiny_folder(tmp_path / "other", seed=1)
    weights = [(p / "model.safetensors").read_bytes() for p in (folder, again, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]


def test_the_folder_loads_and_ends_its_turns_with_im_end(folder, tokenizer):
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_vocabulary_without_room_for_the_bytes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="vocab is 200; want at least 265"):
        make_tiny_folder(tmp_path / "small", vocab=200)
