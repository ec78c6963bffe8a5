"""Would it pay to compute the prompt that a group's rollouts share only once? An upper bound, from a run's own samples.

    python tests/benchmarks/shared_prompts.py .longbreath --out tests/benchmarks/results/shared_prompts.json

For every training step of the home: its tokens, and those that stand in a prefix which an earlier rollout of the same
group and the same optimizer update has too. Were those free, a step could become at most tokens / (tokens - saved)
times as fast; head, optimizer and the attention to the prefix stay, so the real gain is less.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from infra import records
from training.samples import Sample


def saved_tokens(samples: Sequence[Sample]) -> int:
    """Tokens of shared prefixes, less one copy a group."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_id, []).append(sample)
    return sum((len(members) - 1) * shared_prefix(members) for members in groups.values())


def shared_prefix(samples: Sequence[Sample]) -> int:
    """Tokens before the first sampled one that all have in common."""
    width = min(int(s.loss_mask.argmax()) for s in samples)
    rows = np.stack([s.token_ids[:width] for s in samples])
    different = (rows != rows[0]).any(axis=0)
    return int(different.argmax()) if different.any() else width


def dealt(samples: Sequence[Sample], updates: int, seed: int) -> list[list[Sample]]:
    """The rollouts dealt into so many optimizer updates at random, as the trainer deals them."""
    order = list(dict.fromkeys(s.rollout_id for s in samples))
    np.random.default_rng(seed).shuffle(order)
    parts = [set(part) for part in np.array_split(np.asarray(order, dtype=object), updates)]
    return [[s for s in samples if s.rollout_id in part] for part in parts]


def row(steps: list[list[Sample]], updates: int) -> dict[str, Any]:
    tokens = sum(len(s.token_ids) for step in steps for s in step)
    saved = sum(saved_tokens(part) for seed, step in enumerate(steps) for part in dealt(step, updates, seed))
    return {
        "updates_per_batch": updates,
        "steps": len(steps),
        "tokens": tokens,
        "trained_share": sum(s.num_loss_tokens for step in steps for s in step) / tokens,
        "shared_prefix_share": saved / tokens,
        "speedup_at_most": tokens / (tokens - saved),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    files = sorted(given.home.glob("store/objects/*.policy/samples.parquet"))
    if not files:
        raise SystemExit(f"no training steps below {given.home}; run `longbreath finetune` there first")
    steps = [records.read_parquet(Sample, path) for path in files]
    rows = [row(steps, updates) for updates in (1, 2)]
    for line in rows:
        print(json.dumps(line))
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
