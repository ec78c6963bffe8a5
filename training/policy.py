"""A small policy made from nothing: a Llama-shaped model and a tokenizer learnt from a suite's own text.

The result is an ordinary Hugging Face folder; everything downstream works the same on any other one. The chat
template renders what Qwen3's own renders (ChatML with Hermes tool calls), so the Qwen3 renderer serves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.digests import digest_folder

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKER_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CHAT_TEMPLATE = Path(__file__).parent / "assets" / "chat_template.jinja"
POLICY, CHECKPOINT = "policy", "checkpoint"  # a training step leaves both, side by side


class PolicyError(ValueError):
    """A model folder that cannot be used. The message says what is missing and how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShape:
    """The size of a Llama: the default has about 1.2 M parameters with a vocabulary of up to 1,024."""

    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 384
    num_layers: int = 5
    num_heads: int = 4
    num_kv_heads: int = 4
    max_positions: int = 4096
    initializer_range: float = 0.05


def build_policy(
    folder: Path, *, corpus: Iterable[str], phrases: Iterable[str] = (), shape: PolicyShape | None = None, seed: int
) -> Path:
    """Write an untrained policy into `folder` (made if missing) and return it.

    `corpus` teaches the byte-level BPE; digits stay single, so that numbers can be copied. Each of `phrases` (the
    protocol's constant text) becomes one token. The same arguments write the same weights. Raises PolicyError when
    the vocabulary is too small for the 256 bytes and the phrases.
    """
    shape = shape or PolicyShape()
    tokenizer = train_tokenizer(corpus, phrases, shape.vocab_size)
    return write_policy(folder, tokenizer, shape, vocab_size=len(tokenizer), seed=seed)


def write_policy(folder: Path, tokenizer: Any, shape: PolicyShape, *, vocab_size: int, seed: int) -> Path:
    """Write an untrained Llama of `shape`, with embeddings for `vocab_size` tokens, and its tokenizer into `folder`.

    The tokenizer has the special tokens. The same seed writes the same weights.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    eos, pad = (tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_tokenizer(corpus: Iterable[str], phrases: Iterable[str], vocab_size: int) -> Any:
    """A fast tokenizer with at most `vocab_size` tokens: special, markers, phrases, then learnt byte pairs."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    whole = [*MARKER_TOKENS, *dict.fromkeys(phrases)]
    room = vocab_size - len(SPECIAL_TOKENS) - len(whole)
    if room < 256:
        least = 256 + vocab_size - room
        raise PolicyError(f"vocab_size is {vocab_size}; want at least {least}: the bytes and the whole tokens")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?[A-Za-z_]+| ?[^\sA-Za-z_\d]+|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=room, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=2
        ),
    )
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in whole])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE.read_text()
    return tokenizer


def check_policy(folder: Path, *, digest: str | None = None) -> str:
    """The folder's digest, if it is a model folder and, where `digest` is given, the one that is wanted.

    Raises PolicyError that says which file is missing or which digest was found.
    """
    if not folder.is_dir():
        raise PolicyError(f"no model folder at {folder}; give a folder with config.json, *.safetensors and a tokenizer")
    wanted = ("config.json", "tokenizer.json")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise PolicyError(f"{folder} is no model folder: {', '.join(missing)} missing; copy the whole folder again")
    found = digest_folder(folder)
    if digest is not None and found != digest:
        raise PolicyError(f"{folder} has digest {found[:12]}, want {digest[:12]}: it was changed; restore or re-pin it")
    return found
