"""Shared test fakes: a real Hugging Face model folder, tiny and random, made offline in a moment."""

from __future__ import annotations

from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKER_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

_CORPUS = (
    'system user assistant {"name": "bash", "arguments": {"command": "cat config/app.json"}}',
    '# Tools You may call one or more functions to assist with the user query. {"type": "function"}',
    'The check failed with exit code 1: port 8080 is wrong in service.ini. {"thought": "look first"}',
    "ls -la && grep -rn 'port' . | head -n 20; sed -i 's/8080/8081/' config/service.ini; ./check",
    "I will read the log, mend the file and run the check again before I answer.",
    'echo "done" > out.txt; chmod +x start.sh; mkdir -p run/logs; rm -f run/lock; exit 0',
)

# ChatML with Hermes tool calls: renders the same text as Qwen3's own template (see test_fakes.py).
CHAT_TEMPLATE = """\
{%- set ns = namespace(last_query=messages|length - 1, found=false) -%}
{%- for m in messages[::-1] -%}
  {%- set text = (m.content or '')|trim -%}
  {%- set wrapped = text.startswith('<tool_response>') and text.endswith('</tool_response>') -%}
  {%- if not ns.found and m.role == 'user' and not wrapped -%}
    {%- set ns.last_query = messages|length - 1 - loop.index0 -%}{%- set ns.found = true -%}
  {%- endif -%}
{%- endfor -%}
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools -%}
  {{- '<|im_start|>system\\n' -}}
  {%- if messages[0].role == 'system' -%}{{- system + '\\n\\n' -}}{%- endif -%}
  {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
  {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' + tool|tojson -}}{%- endfor -%}
  {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments ' -}}
  {{- 'within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}
  {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' -}}
{%- elif messages[0].role == 'system' -%}
  {{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
  {%- set content = m.content or '' -%}
  {%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
    {{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' -}}
  {%- elif m.role == 'assistant' -%}
    {%- set reasoning = '' -%}
    {%- if m.reasoning_content is string -%}
      {%- set reasoning = m.reasoning_content -%}
    {%- elif '</think>' in content -%}
      {%- set halves = content.split('</think>', 1) -%}
      {%- set reasoning = halves[0].split('<think>')[-1].strip('\\n') -%}
      {%- set content = halves[1].lstrip('\\n') -%}
    {%- endif -%}
    {{- '<|im_start|>assistant\\n' -}}
    {%- if loop.index0 > ns.last_query and (loop.last or reasoning) -%}
      {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -}}
    {%- else -%}
      {{- content -}}
    {%- endif -%}
    {%- for call in m.tool_calls or [] -%}
      {%- if content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
      {%- set function = call.function or call -%}
      {%- set arguments = function.arguments -%}
      {%- if arguments is not string -%}{%- set arguments = arguments|tojson -%}{%- endif -%}
      {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' + arguments + '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- elif m.role == 'tool' -%}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
    {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}
"""


def make_tiny_folder(
    path: Path,
    *,
    seed: int = 0,
    vocab: int = 320,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    max_positions: int = 2048,
) -> Path:
    """Write a random float32 LlamaForCausalLM with its byte-level BPE tokenizer into `path`; return `path`.

    `vocab` is the size of the embedding and the most tokens that the tokenizer may have (at least 265: the
    bytes and the special tokens). The same arguments write the same weights. Raises
    ValueError on a smaller vocab.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = _train_tokenizer(vocab)
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    pad = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_positions,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def _train_tokenizer(vocab: int):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    room = vocab - len(SPECIAL_TOKENS) - len(MARKER_TOKENS)
    if room < 256:
        raise ValueError(f"vocab is {vocab}; want at least 265: 256 bytes and 9 special tokens")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(_CORPUS, trainer)
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKER_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
