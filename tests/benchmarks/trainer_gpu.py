"""The learning step on one CUDA device: model FLOP utilisation and peak memory against the full-logit step.

    python tests/benchmarks/trainer_gpu.py --out FILE.json     # 1.5B parameters in Qwen2's shape, 16k tokens, bfloat16
    python tests/benchmarks/trainer_gpu.py --smoke             # a tiny shape on the CPU: only that it runs

One JSON line each for the packed one-pass step with its float32 head, the same with the head's products on TF32
tensor cores, and a plain step that forms all logits. Wants: MFU >= 40 % and at most half the plain step's peak memory.
Weights are random: speed does not depend on them. Meant to end within four minutes on an H200.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Dense bfloat16 tensor-core peak, FLOP/s, from NVIDIA's data sheets.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
QWEN2_1_5B = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
SMOKE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
Step = Callable[[], Any]


def make_model(folder: Path, shape: dict[str, Any], device: torch.device) -> int:
    """Write a random model; how many parameters it has."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with device:
        model = Qwen2ForCausalLM(Qwen2Config(**shape))
    model.to("cpu").save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def make_samples(tokens: int, length: int, vocab_size: int) -> list[Any]:
    """Samples of `length` tokens, a quarter of them prompt."""
    from training.samples import Sample

    rng = np.random.default_rng(0)
    mask = np.arange(length) >= length // 4
    return [
        Sample(
            token_ids=rng.integers(0, vocab_size, length).astype(np.int32),
            loss_mask=mask,
            behaviour_logprobs=np.where(mask, -np.log(vocab_size), 0).astype(np.float32),
            advantages=np.where(mask, rng.normal(), 0).astype(np.float32),
            policy_versions=np.where(mask, 0, -1).astype(np.int32),
            weight=1.0,
            temperature=1.0,
            chain_id=f"c{i}",
            rollout_id=f"r{i}",
            group_id=f"g{i // 8}",
        )
        for i in range(tokens // length)
    ]


def flops_per_step(parameters: int, tokens: int, length: int, shape: dict[str, Any]) -> float:
    """6 per parameter and token (the tied head counts once), and causal attention: 6 * layers * hidden * length."""
    attention = 6 * shape["num_hidden_layers"] * shape["hidden_size"] * length
    return tokens * (6.0 * parameters + attention)


def packed_step(folder: Path, samples: list[Any], device: torch.device) -> Step:
    """The trainer's own step, all samples in one row."""
    from training.config import TrainConfig
    from training.distributed import single_process
    from training.trainer import Trainer

    tokens = sum(len(s.token_ids) for s in samples)
    config = TrainConfig(token_budget=tokens, precision="bfloat16")
    trainer = Trainer(folder, config, world=single_process(device))
    return lambda: trainer.train_step(samples)


def plain_step(folder: Path, samples: list[Any], device: torch.device) -> Step:
    """A padded batch, all logits in float32, log_softmax, CISPO by autograd."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([getattr(s, name) for s in samples])).to(device)

    ids = stacked("token_ids").long()
    old, advantages, mask = (stacked(n)[:, 1:] for n in ("behaviour_logprobs", "advantages", "loss_mask"))

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(ids, use_cache=False).logits
        picked = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        weight = torch.exp(picked - old).clamp(max=5.0).detach()
        (-(weight * advantages * picked)[mask].sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Step, steps: int, device: torch.device) -> tuple[float, float]:
    """(best seconds of `steps`, peak GiB); one step before them warms up."""
    cuda = device.type == "cuda"
    step()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(steps):
        started = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return best, peak / 2**30


def with_tf32(step: Step) -> Step:
    """The step with TF32 allowed in float32 products, of which the head's are nearly all."""

    def run() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            step()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    if not (given.smoke or torch.cuda.is_available()):
        raise SystemExit("no CUDA device; this benchmark needs one (--smoke runs a tiny shape on the CPU)")
    device = torch.device("cpu" if given.smoke else "cuda")
    shape, tokens, length = (SMOKE, 512, 128) if given.smoke else (QWEN2_1_5B, given.tokens, given.length)
    with tempfile.TemporaryDirectory() as place:
        lines = run(Path(place) / "model", shape, tokens, length, given.steps, device)
    if given.out:
        given.out.write_text(json.dumps(lines, indent=1) + "\n")


def run(
    folder: Path, shape: dict[str, Any], tokens: int, length: int, steps: int, device: torch.device
) -> list[dict[str, Any]]:
    """Measure the three steps one after another, each with the memory of those before it given back."""
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    peak_flops = next((flops for model, flops in PEAK_FLOPS.items() if model in name), None)
    parameters = make_model(folder, shape, device)
    samples = make_samples(tokens, length, shape["vocab_size"])
    contenders: dict[str, Callable[[], Step]] = {
        "packed, float32 head": lambda: packed_step(folder, samples, device),
        "packed, TF32 head": lambda: with_tf32(packed_step(folder, samples, device)),
        "all logits": lambda: plain_step(folder, samples, device),
    }
    lines = []
    for contender, make in contenders.items():
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        seconds, gib = timed(make(), steps, device)
        mfu = flops_per_step(parameters, tokens, length, shape) / seconds / peak_flops if peak_flops else None
        lines.append({"step": contender, "device": name, "tokens_per_s": tokens / seconds, "mfu": mfu, "peak_gib": gib})
        print(json.dumps(lines[-1]), flush=True)
    return lines


if __name__ == "__main__":
    main()
