"""The learning step on one CUDA device: model FLOP utilisation and peak memory against the full-logit step.

    python tests/benchmarks/trainer.py_gpu            # 1.5B parameters in Qwen2's shape, 16k tokens a step, bfloat16

Prints one JSON line each for the packed one-pass step and for a plain step that forms all logits. Wants: MFU >= 40 %
and at most half the plain step's peak memory. Weights are random: speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
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
PROMPT = 512


def make_model(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN2_1_5B))
    model.to("cpu").save_pretrained(folder)


def make_samples(tokens: int, length: int) -> list[Any]:
    from training.samples import Sample

    rng = np.random.default_rng(0)
    mask = np.arange(length) >= PROMPT
    return [
        Sample(
            token_ids=rng.integers(0, QWEN2_1_5B["vocab_size"], length).astype(np.int32),
            loss_mask=mask,
            behaviour_logprobs=np.where(mask, -12.0, 0).astype(np.float32),
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


def flops_per_step(parameters: int, tokens: int, length: int) -> float:
    """6 per parameter and token (the tied head counts once), and causal attention: 6 * layers * hidden * length."""
    attention = 6 * QWEN2_1_5B["num_hidden_layers"] * QWEN2_1_5B["hidden_size"] * length
    return tokens * (6.0 * parameters + attention)


def timed(step: Callable[[], Any], steps: int) -> tuple[float, float]:
    """(best seconds, peak GiB)."""
    step()
    torch.cuda.reset_peak_memory_stats()
    best = float("inf")
    for _ in range(steps):
        torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best, torch.cuda.max_memory_allocated() / 2**30


def plain_step(folder: Path, samples: list[Any]) -> Callable[[], None]:
    """A padded batch, all logits in float32, log_softmax, CISPO by autograd."""
    from transformers import AutoModelForCausalLM

    model: Any = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").cuda().train()
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    ids = torch.from_numpy(np.stack([s.token_ids for s in samples])).long().cuda()
    old = torch.from_numpy(np.stack([s.behaviour_logprobs for s in samples])).cuda()[:, 1:]
    advantages = torch.from_numpy(np.stack([s.advantages for s in samples])).cuda()[:, 1:]
    mask = torch.from_numpy(np.stack([s.loss_mask for s in samples])).cuda()[:, 1:]

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids, use_cache=False).logits
        picked = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        weight = torch.exp(picked - old).clamp(max=5.0).detach()
        (-(weight * advantages * picked)[mask].sum() / mask.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tf32-head", action="store_true", help="let the float32 head use TF32 tensor cores")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device; this benchmark needs one")
    torch.backends.cuda.matmul.allow_tf32 = given.tf32_head
    device = torch.cuda.get_device_name()
    peak = next((flops for name, flops in PEAK_FLOPS.items() if name in device), None)
    from training.config import TrainConfig
    from training.trainer import Trainer

    with tempfile.TemporaryDirectory() as place:
        folder, samples = Path(place) / "model", make_samples(given.tokens, given.length)
        make_model(folder)
        config = TrainConfig(token_budget=given.tokens, precision="bfloat16", chunk_elements=2**28)
        trainer = Trainer(folder, config)
        parameters = sum(p.numel() for p in trainer.policy.parameters())
        contenders: dict[str, Callable[[], Any]] = {"longbreath": lambda: trainer.train_step(samples)}
        for name in ("longbreath", "plain"):
            if name == "plain":
                del contenders["longbreath"], trainer
                torch.cuda.empty_cache()
                contenders["plain"] = plain_step(folder, samples)
            seconds, gib = timed(contenders[name], given.steps)
            flops = flops_per_step(parameters, given.tokens, given.length)
            mfu = None if peak is None else flops / seconds / peak
            print(
                json.dumps(
                    {
                        "step": name,
                        "device": device,
                        "tokens_per_s": given.tokens / seconds,
                        "mfu": mfu,
                        "peak_gib": gib,
                    }
                )
            )


if __name__ == "__main__":
    main()
