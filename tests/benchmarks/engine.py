"""Sampled tokens a second on multi-turn work: the local engine against its peers, in one run.

    export PYTHONPATH=.:tests
    python tests/benchmarks/engine.py --threads 1
    python tests/benchmarks/engine.py --peers generate --vllm-url http://127.0.0.1:8123

Every session starts from one shared prompt and a part of its own, answers `--answer` tokens, gets `--tail` new ones
and so on for `--turns` turns. Peers: `generate` of transformers, all sessions in one left-padded batch, re-run from
the first token at every turn; transformers' own continuous batching (`generate_batch`), likewise; a vLLM server
that serves the same folder, if there is one. CPU seconds are printed beside the clock: on a busy machine they are
what can be compared (of vLLM they are not known here).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from fakes import make_tiny_folder
from transformers import AutoModelForCausalLM, GenerationConfig

from infra.engines.base import Engine, GenerateRequest, Sampling
from infra.engines.local import LocalEngine, LocalSettings
from infra.engines.vllm import VllmEngine

VOCAB = 600


@dataclass(frozen=True)
class Work:
    """What each of `sessions` sessions does."""

    sessions: int
    turns: int
    shared: int
    own: int
    answer: int
    tail: int

    def prompt(self, session: int) -> list[int]:
        return _ids(0, self.shared) + _ids(session + 1, self.own)

    def next_tail(self, session: int, turn: int) -> list[int]:
        return _ids(1000 * (turn + 1) + session, self.tail)

    @property
    def context(self) -> int:
        return self.shared + self.own + self.turns * (self.answer + self.tail)

    @property
    def tokens(self) -> int:
        return self.sessions * self.turns * self.answer


@dataclass(frozen=True)
class Result:
    """`wall_s` by the clock, `cpu_s` of this process, for `tokens` sampled."""

    name: str
    tokens: int
    wall_s: float
    cpu_s: float
    seconds_of_cpu_known: bool = True

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def tokens_per_cpu_s(self) -> float:
        return self.tokens / self.cpu_s if self.seconds_of_cpu_known else float("nan")


def _ids(seed: int, count: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count,), generator=generator).tolist()


def timed(name: str, tokens: int, run: Callable[[], None], *, cpu_known: bool = True) -> Result:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Result(name, tokens, time.perf_counter() - wall, time.process_time() - cpu, cpu_known)


async def converse(engine: Engine, work: Work, label: str) -> None:
    async def session(index: int) -> None:
        prompt = work.prompt(index)
        for turn in range(work.turns):
            name = f"{label}{index}"
            request = GenerateRequest(
                request_id=f"{name}/{turn}",
                session_id=name,
                rollout_id=name,
                call_index=turn,
                prompt_ids=prompt,
                sampling=Sampling(max_tokens=work.answer),
            )
            completion = await engine.generate(request)
            prompt = prompt + list(completion.ids) + work.next_tail(index, turn)

    await asyncio.gather(*(session(i) for i in range(work.sessions)))


def run_local(folder: Path, work: Work, threads: int) -> Result:
    engine = LocalEngine(folder, settings=LocalSettings(num_slots=work.sessions, num_threads=threads))
    small = Work(2, 2, 80, 5, 5, 5)
    asyncio.run(converse(engine, small, "warm"))
    result = timed("longbreath local", work.tokens, lambda: asyncio.run(converse(engine, work, "s")))
    asyncio.run(engine.aclose())
    return result


def run_vllm(url: str, folder: Path, work: Work) -> Result:
    async def both() -> Result:
        engine = VllmEngine(url, folder)
        await converse(engine, work, "warm")
        start = time.perf_counter()
        await converse(engine, work, "s")
        wall = time.perf_counter() - start
        await engine.aclose()
        return Result("vllm server", work.tokens, wall, 0.0, seconds_of_cpu_known=False)

    return asyncio.run(both())


def turns_of(work: Work, answer: Callable[[list[list[int]]], list[list[int]]]) -> None:
    prompts = [work.prompt(i) for i in range(work.sessions)]
    for turn in range(work.turns):
        answers = answer(prompts)
        prompts = [p + a + work.next_tail(i, turn) for i, (p, a) in enumerate(zip(prompts, answers, strict=True))]


def sampling_config(work: Work) -> GenerationConfig:
    return GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=work.answer, min_new_tokens=work.answer, pad_token_id=0
    )


def run_generate(folder: Path, work: Work) -> Result:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = sampling_config(work)

    def answer(prompts: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        return model.generate(ids, attention_mask=mask, generation_config=config)[:, longest:].tolist()

    with torch.inference_mode():
        turns_of(Work(2, 1, 8, 2, 2, 2), lambda prompts: [a[:2] for a in answer(prompts)])
        return timed("transformers generate, re-run", work.tokens, lambda: turns_of(work, answer))


def run_continuous(folder: Path, work: Work) -> Result:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="paged|sdpa").eval()
    config = sampling_config(work)

    def answer(prompts: list[list[int]]) -> list[list[int]]:
        outputs = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        by_prompt = {tuple(o.prompt_ids): o.generated_tokens for o in outputs.values()}
        return [by_prompt[tuple(p)][: work.answer] for p in prompts]

    with torch.inference_mode():
        return timed("transformers generate_batch, re-run", work.tokens, lambda: turns_of(work, answer))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a Hugging Face folder (default: a random 1.7M-parameter Llama)")
    parser.add_argument("--peers", nargs="*", default=["generate", "continuous"])
    parser.add_argument("--vllm-url", default="")
    parser.add_argument("--threads", type=int, default=1)
    for name, default in (("sessions", 64), ("turns", 6), ("shared", 200), ("own", 60), ("answer", 25), ("tail", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--continuous-sessions", type=int, default=8, help="fewer for the slowest peer")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    shape = {name: getattr(arguments, name) for name in ("turns", "shared", "own", "answer", "tail")}
    work = Work(sessions=arguments.sessions, **shape)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or make_tiny_folder(
            Path(scratch), vocab=VOCAB, layers=4, hidden=192, heads=6, kv_heads=2
        )
        results = [run_local(folder, work, arguments.threads)]
        if "generate" in arguments.peers:
            results.append(run_generate(folder, work))
        if "continuous" in arguments.peers:
            results.append(run_continuous(folder, Work(sessions=arguments.continuous_sessions, **shape)))
        if arguments.vllm_url:
            results.append(run_vllm(arguments.vllm_url, folder, work))
    report(results, work, arguments.threads)


def report(results: list[Result], work: Work, threads: int) -> None:
    print(f"{work.sessions} sessions x {work.turns} turns x {work.answer} tokens, {threads} thread(s)")
    print(f"{'engine':38}{'tok/s':>9}{'tok/cpu-s':>11}{'wall s':>9}{'cpu s':>8}")
    for r in results:
        print(f"{r.name:38}{r.tokens_per_s:9.0f}{r.tokens_per_cpu_s:11.0f}{r.wall_s:9.1f}{r.cpu_s:8.1f}")
    ours, peers = results[0], results[1:]
    ratios = {r.name: round(ours.tokens_per_s / r.tokens_per_s, 2) for r in peers}
    cpu_ratios = {r.name: round(ours.tokens_per_cpu_s / r.tokens_per_cpu_s, 2) for r in peers if r.seconds_of_cpu_known}
    print(
        json.dumps(
            {
                "work": asdict(work),
                "threads": threads,
                "results": [asdict(r) for r in results],
                "times_faster_by_the_clock": ratios,
                "times_faster_by_cpu_seconds": cpu_ratios,
            }
        )
    )


if __name__ == "__main__":
    main()
