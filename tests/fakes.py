"""Shared test fakes: a real Hugging Face model folder, tiny and random, made offline in a moment."""

from __future__ import annotations

from pathlib import Path

from training.policy import CHAT_TEMPLATE, MARKER_TOKENS, SPECIAL_TOKENS, PolicyShape, write_policy

_CORPUS = (
    'system user assistant {"name": "bash", "arguments": {"command": "cat config/app.json"}}',
    '# Tools You may call one or more functions to assist with the user query. {"type": "function"}',
    'The check failed with exit code 1: port 8080 is wrong in service.ini. {"thought": "look first"}',
    "ls -la && grep -rn 'port' . | head -n 20; sed -i 's/8080/8081/' config/service.ini; ./check",
    "I will read the log, mend the file and run the check again before I answer.",
    'echo "done" > out.txt; chmod +x start.sh; mkdir -p run/logs; rm -f run/lock; exit 0',
)


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
    bytes and the special tokens). The same arguments write the same weights. Raises ValueError on a smaller vocab.
    """
    shape = PolicyShape(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        max_positions=max_positions,
        initializer_range=0.08,
    )
    return write_policy(path, _train_tokenizer(vocab), shape, vocab_size=vocab, seed=seed)


def long_context_shape(*, layers: int) -> PolicyShape:
    """Narrow, and with room for the prompts of command-line agents, which run to tens of thousands of tokens."""
    return PolicyShape(
        vocab_size=4096,
        hidden_size=32,
        intermediate_size=64,
        num_layers=layers,
        num_heads=4,
        num_kv_heads=2,
        max_positions=131_072,
    )


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
    tokenizer.chat_template = CHAT_TEMPLATE.read_text()
    return tokenizer
