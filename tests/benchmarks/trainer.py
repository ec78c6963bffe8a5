"""The learning step against TRL's GRPOTrainer(loss_type='cispo') in one run: tokens a second, peak memory, same loss.

    python tests/benchmarks/trainer.py --trl-python <an interpreter with trl, torch and transformers>
    python tests/benchmarks/trainer.py --trl-python ... --cases smollm2_8x512 smollm2_2x2048

Each contender runs in a process of its own on the same tokens, behaviour log-probabilities and advantages: forward,
loss, backward, clip and AdamW, without generation. Tokens are counted without padding. CPU seconds are printed beside
the clock: on a busy machine only they can be compared. TRL is driven through `_compute_loss`, its own learning code;
its microbatches hold 8 rows, as do its padded tensors, and ours the same number of tokens at most.
The SmolLM2 cases use a random model of SmolLM2-135M's shape: the cost is the same, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

MAX_RATIO, RATE, MICROBATCH = 5.0, 1e-4, 8
TINY = {
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
DEMO = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 600,
}
SMOLLM2 = {
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "vocab_size": 49152,
}  # fmt: skip
KV_HEADS = {"tiny": 4, "demo": 2, "smollm2": 3}


@dataclass(frozen=True)
class Case:
    """`lengths`: completion tokens of each rollout, after `prompt` tokens."""

    model: str
    shape: dict[str, int]
    prompt: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths) + self.prompt * len(self.lengths)


def _varied(count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(x) for x in np.random.default_rng(0).integers(low, high + 1, count))


CASES = {
    "tiny_uniform": Case("tiny", TINY, 128, (384,) * 64),
    "tiny_varied": Case("tiny", TINY, 32, _varied(64, 32, 480)),
    "demo_varied": Case("demo", DEMO, 120, _varied(64, 180, 580)),
    "smollm2_8x512": Case("smollm2", SMOLLM2, 128, (384,) * 8),
    "smollm2_2x2048": Case("smollm2", SMOLLM2, 128, (1920,) * 2),
    "smollm2_varied": Case("smollm2", SMOLLM2, 32, _varied(8, 32, 480)),
}


@dataclass(frozen=True)
class Result:
    """One contender on one case. Rates are of the best of the timed steps; the loss is of the first step."""

    contender: str
    case: str
    loss: float
    tokens: int
    tokens_per_cpu_s: float
    tokens_per_s: float
    peak_rss_mib: float


def prepare(case: Case, folder: Path) -> None:
    """Write the model folder with a byte tokenizer, and the batch as arrays."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        **case.shape, num_key_value_heads=KV_HEADS[case.model], max_position_embeddings=4096, tie_word_embeddings=True
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"t{i}": i for i in range(256)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token="t1").save_pretrained(folder)
    rng = np.random.default_rng(1)
    width = case.prompt + max(case.lengths)
    mask = np.arange(width)[None] < case.prompt + np.asarray(case.lengths)[:, None]
    ids = rng.integers(0, config.vocab_size, mask.shape) * mask
    logprob = -np.log(config.vocab_size)
    behaviour = rng.normal(logprob, 0.5, mask.shape).clip(max=-0.1) * mask
    np.savez(folder / "batch.npz", ids=ids, behaviour=behaviour, advantages=rng.normal(size=len(case.lengths)))


def longbreath(case: Case, folder: Path) -> Callable[[], float]:
    from training.config import OptimizerConfig, TrainConfig
    from training.samples import Sample
    from training.trainer import Trainer

    batch = np.load(folder / "batch.npz")
    samples = []
    for i, length in enumerate(case.lengths):
        size = case.prompt + length
        mask = np.arange(size) >= case.prompt
        samples.append(
            Sample(
                token_ids=batch["ids"][i, :size].astype(np.int32),
                loss_mask=mask,
                behaviour_logprobs=np.where(mask, batch["behaviour"][i, :size], 0).astype(np.float32),
                advantages=np.where(mask, batch["advantages"][i], 0).astype(np.float32),
                policy_versions=np.where(mask, 0, -1).astype(np.int32),
                weight=1.0,
                temperature=1.0,
                chain_id=f"c{i}",
                rollout_id=f"r{i}",
                group_id=f"g{i // 8}",
            )
        )
    budget = MICROBATCH * (case.prompt + max(case.lengths))
    trainer = Trainer(folder, TrainConfig(optimizer=OptimizerConfig(learning_rate=RATE), token_budget=budget))
    return lambda: trainer.train_step(samples).loss


def trl(case: Case, folder: Path) -> Callable[[], float]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = len(case.lengths)
    micro = min(MICROBATCH, rows)
    args = GRPOConfig(
        output_dir=str(folder / "trl"), loss_type="cispo", epsilon_high=MAX_RATIO, beta=0.0, learning_rate=RATE,
        bf16=False, gradient_checkpointing=False, use_cpu=True, report_to=[], num_generations=micro,
        per_device_train_batch_size=micro, gradient_accumulation_steps=rows // micro, temperature=1.0,
        max_completion_length=max(case.lengths), adam_beta2=0.95, weight_decay=0.0,
        model_init_kwargs={"dtype": "float32"},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=str(folder), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=args,
        train_dataset=Dataset.from_dict({"prompt": ["t1"] * rows}),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = rows // micro
    optimizer = trainer.create_optimizer()
    batches = _trl_inputs(case, np.load(folder / "batch.npz"), micro)
    model: Any = trainer.model.train()

    def step() -> float:
        total = 0.0
        for inputs in batches:
            loss = trainer._compute_loss(model, inputs)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def _trl_inputs(case: Case, batch: Any, micro: int) -> list[dict[str, torch.Tensor]]:
    lengths = torch.tensor(case.lengths)
    mask = (torch.arange(max(case.lengths))[None] < lengths[:, None]).long()
    ids = torch.from_numpy(batch["ids"]).long()
    whole = {
        "prompt_ids": ids[:, : case.prompt],
        "prompt_mask": torch.ones_like(ids[:, : case.prompt]),
        "completion_ids": ids[:, case.prompt :],
        "completion_mask": mask,
        "advantages": torch.from_numpy(batch["advantages"]).float(),
        "old_per_token_logps": torch.from_numpy(batch["behaviour"][:, case.prompt :]).float(),
    }
    parts = [{k: v[i : i + micro] for k, v in whole.items()} for i in range(0, len(lengths), micro)]
    return [{**part, "num_items_in_batch": mask.sum()} for part in parts]


def measure(contender: str, name: str, folder: Path, steps: int) -> Result:
    """Run one contender in this process: one step to warm up, which gives the loss, then the timed ones."""
    case = CASES[name]
    step = {"longbreath": longbreath, "trl": trl}[contender](case, folder)
    loss = step()
    times = []
    for _ in range(steps):
        clock, cpu = time.perf_counter(), time.process_time()
        step()
        times.append((time.process_time() - cpu, time.perf_counter() - clock))
    return Result(
        contender=contender,
        case=name,
        loss=loss,
        tokens=case.tokens,
        tokens_per_cpu_s=case.tokens / min(t[0] for t in times),
        tokens_per_s=case.tokens / min(t[1] for t in times),
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def compare(name: str, pythons: dict[str, str], steps: int, threads: int) -> list[Result]:
    """All contenders on one case, one after another."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        prepare(CASES[name], folder)
        results = []
        for contender, python in pythons.items():
            command = [python, __file__, "--one", contender, name, str(folder)]
            command += ["--steps", str(steps), "--threads", str(threads)]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
            if made.returncode:
                raise SystemExit(f"{contender} failed on {name}:\n{made.stderr[-3000:]}")
            results.append(Result(**json.loads(made.stdout.splitlines()[-1])))
            print(json.dumps(asdict(results[-1])), flush=True)
        return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl-python", help="interpreter that has trl")
    parser.add_argument("--cases", nargs="+", default=["tiny_uniform", "tiny_varied"], choices=sorted(CASES))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", nargs=3, metavar=("CONTENDER", "CASE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        print(json.dumps(asdict(measure(given.one[0], given.one[1], Path(given.one[2]), given.steps))))
        return
    pythons = {"longbreath": sys.executable, **({"trl": given.trl_python} if given.trl_python else {})}
    for name in given.cases:
        results = compare(name, pythons, given.steps, given.threads)
        if len(results) == 2:
            ours, theirs = results
            print(
                f"{name}: {ours.tokens_per_cpu_s / theirs.tokens_per_cpu_s:.2f}x tokens per CPU second, "
                f"{ours.peak_rss_mib / theirs.peak_rss_mib:.2f}x peak memory, "
                f"loss differs by {abs(ours.loss - theirs.loss):.2e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
