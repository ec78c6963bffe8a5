"""The deployment gap: what a policy loses when it is served as production serves, its history rendered anew each turn.

    python tests/benchmarks/polar_deployment.py --out tests/benchmarks/results/polar_deployment.json

The same policy does the same held-out tasks twice under each harness: by the id path (a prompt is the sampled ids of
earlier turns and a rendered tail, as in training) and plainly (each prompt rendered whole from what the harness
sends). Both draw with the same random numbers, so where no prompt differs the two runs are the same. Reported:
success of both, paired by task; how many calls had another prompt; and the difference of each answer's
log-probabilities (nats) under the two prompts. `--folder` measures another policy; `--only` names harnesses, by a
comma, and keeps the others of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [ROOT / "tests" / "environments" / room for room in ("harnesses", "polar")]
sys.path[:0] = [str(p) for p in (ROOT, ROOT / "tests", *ROOMS)]

from harness_rooms import SUITE, Memory  # noqa: E402

from environments.gates.judge import GateConfig, judge  # noqa: E402
from environments.harnesses.base import Harness  # noqa: E402
from environments.harnesses.equipped_boxes import boxes_for  # noqa: E402
from environments.harnesses.mini_swe_agent import TOOL_LOOP, MiniSweAgent  # noqa: E402
from environments.harnesses.tool_loop import ToolLoop  # noqa: E402
from environments.polar.deployment import TwoPrompts, both_prompts  # noqa: E402
from environments.polar.recorder import PolarRecorder, RecorderSettings  # noqa: E402
from environments.polar.rendering import load_rendering  # noqa: E402
from environments.polar.replay import open_logs  # noqa: E402
from environments.rollout import GroupRequest, RolloutRoom, roll_out_groups  # noqa: E402
from environments.sandboxes.bubblewrap import BubblewrapProvider  # noqa: E402
from environments.types import TaskSpec  # noqa: E402
from infra.digests import digest_folder  # noqa: E402
from infra.engines.base import Sampling  # noqa: E402
from infra.engines.local import LocalEngine  # noqa: E402
from training.config import TrainConfig  # noqa: E402
from training.evaluation.comparison import compare  # noqa: E402
from training.samples import Sample  # noqa: E402
from training.trainer import Trainer  # noqa: E402

POLICY = ROOT / "training" / "assets" / "tiny"
HARNESSES = {"tool_loop": (ToolLoop, 16), "mini_swe_agent": (lambda: MiniSweAgent(template=TOOL_LOOP), 4)}
MAX_TOKENS, SEED = 96, 20_261_201


async def rewards_of(
    harness: Harness, concurrency: int, folder: Path, tasks: tuple[TaskSpec, ...], log: Path, *, rerender: bool
) -> dict[str, list[float]]:
    """Reward by task; what was recorded goes to `log`."""
    engine, boxes, memory = LocalEngine(folder), BubblewrapProvider(), Memory()
    recorder = PolarRecorder(engine, log, settings=RecorderSettings(rerender=rerender))
    try:
        async with boxes_for(harness, boxes, recorder) as equipped:
            room = RolloutRoom(
                suite=SUITE,
                harness=harness,
                boxes=equipped,
                recorder=recorder,
                log=memory,
                sampling=Sampling(max_tokens=MAX_TOKENS, seed=SEED),
                concurrency=concurrency,
            )
            groups = await roll_out_groups([GroupRequest(group_id=t.task_id, task=t, size=1) for t in tasks], room)
    finally:
        await recorder.aclose()
        await engine.aclose()
    found: dict[str, list[float]] = {}
    for task, group in zip(tasks, groups, strict=True):
        for member in group.members:
            state = memory.states[member.rollout_id]
            verdict = await judge(member, task, SUITE, boxes, state, GateConfig())
            if verdict.reward is not None:
                found[task.task_id] = [verdict.reward]
    return found


def _sample(call: TwoPrompts, prompt: tuple[int, ...], number: int) -> Sample:
    ids = np.array([*prompt, *call.completion], dtype=np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    zeros = np.zeros(len(ids), dtype=np.float32)
    return Sample(
        token_ids=ids,
        loss_mask=mask,
        behaviour_logprobs=zeros,
        advantages=zeros,
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        weight=1.0,
        temperature=1.0,
        chain_id=f"{call.call_id}-{number}",
        rollout_id=call.call_id,
        group_id="g",
    )


def logprob_gap(log: Path, folder: Path) -> dict[str, Any]:
    """Kept minus plain log-probability of every token whose call had another prompt; the trainer scores both."""
    rendering = load_rendering(folder)
    calls = [c for rollout in open_logs(log).rollouts.values() for c in both_prompts(rollout, rendering)]
    changed = [c for c in calls if c.kept != c.plain]
    counts = {"calls": len(calls), "calls_with_another_prompt": len(changed)}
    if not changed:
        return counts
    samples = [_sample(c, p, n) for c in changed for n, p in enumerate((c.kept, c.plain))]
    scored = [x[s.loss_mask] for s, x in zip(samples, Trainer(folder, TrainConfig()).logprobs(samples), strict=True)]
    gaps = np.concatenate([a - b for a, b in zip(scored[::2], scored[1::2], strict=True)]).astype(np.float64)
    sizes = np.abs(gaps)
    found = {"mean": gaps.mean(), "mean_abs": sizes.mean(), "p99": np.quantile(sizes, 0.99), "max": sizes.max()}
    return {**counts, "tokens": len(gaps), **{name: float(f"{value:.3g}") for name, value in found.items()}}


async def measure(folder: Path, num_tasks: int, names: list[str]) -> dict[str, Any]:
    """Both ways under each harness."""
    pool = SUITE.pool(split="held_out", size=num_tasks, seed=0, min_horizon=3, max_horizon=8)
    rows: dict[str, Any] = {}
    for name in names:
        make, concurrency = HARNESSES[name]
        with tempfile.TemporaryDirectory() as scratch:
            ids, plain = Path(scratch) / "ids", Path(scratch) / "plain"
            kept = await rewards_of(make(), concurrency, folder, pool.tasks, ids, rerender=False)
            anew = await rewards_of(make(), concurrency, folder, pool.tasks, plain, rerender=True)
            both = sorted(kept.keys() & anew.keys())
            before, after = {t: anew[t] for t in both}, {t: kept[t] for t in both}
            horizons = {t.task_id: t.horizon for t in pool.tasks}
            compared = compare(before, after, horizons=horizons, bands=(), seed=0)
            rows[name] = {
                "policy": digest_folder(folder),
                "tasks": len(both),
                "success_plain": asdict(compared.before),
                "success_ids": asdict(compared.after),
                "ids_minus_plain": asdict(compared.gain),
                "p_value": compared.p_value,
                "tasks_with_another_outcome": sum(kept[t] != anew[t] for t in both),
                "logprob_gap": logprob_gap(ids, folder),
            }
        print(name, json.dumps(rows[name]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=POLICY)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(HARNESSES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.out is not None and args.out.is_file() else {}
    rows = {**kept, **asyncio.run(measure(args.folder, args.tasks, args.only))}
    text = json.dumps(rows, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
