"""The claim: a clip on the loss stops a rare token from being learned, a clip on the weight does not.

Measured on one softmax choice (see one_choice.py for what that leaves out): the rare token that the reward needs, and
the case that CISPO loses: noisy rewards with large steps, where a trust region is what keeps luck from being learned.

Left out: GRPO without its KL term and Dr. GRPO, which are PPO's clip when a rollout is one token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from training.experiments.one_choice import Choice, Run, run
from training.losses.base import TokenLoss
from training.losses.cispo import Cispo
from training.losses.dapo import Dapo
from training.losses.dispo import Dispo
from training.losses.gspo import Gspo
from training.losses.m1_mask import M1Mask
from training.losses.ppo_clip import PpoClip
from training.losses.reinforce import Reinforce

LOSSES: Mapping[str, TokenLoss] = {
    "ppo_clip": PpoClip(),
    "dapo": Dapo(),
    "gspo": Gspo(),
    "m1_mask": M1Mask(),
    "cispo": Cispo(max_ratio=5.0),
    "dispo": Dispo(),
    "unclipped": Cispo(max_ratio=math.inf),
    "reinforce": Reinforce(),
}
LOST_BELOW = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """What is run. `rare`: (start probability, learning rates, most batches) of the rare token; `noisy`: (batches late,
    learning rates) of the noisy rewards, with twice the seeds, for `noisy_batches`. The default is what the claim
    rests on; smaller plans only show that it runs."""

    seeds: int = 10
    rare: tuple[tuple[float, tuple[float, ...], int], ...] = (
        (1e-2, (0.03, 0.1, 0.3), 200),
        (1e-3, (0.03, 0.1, 0.3), 200),
        (1e-5, (0.3,), 2000),
    )
    noisy: tuple[tuple[int, tuple[float, ...]], ...] = ((0, (0.3, 1.0, 3.0)), (4, (0.3, 1.0, 3.0)))
    noisy_batches: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RareRow:
    """One loss on the rare token. Batches are medians and maxima over seeds, counted from the batch that first holds
    the token (`waited` apart); None: some or most seeds never got there. `gradient_share` by update of that batch."""

    loss: str
    start_probability: float
    learning_rate: float
    waited_median: float | None
    batches_to_half_median: float | None
    batches_to_half_max: float | None
    gradient_share: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyRow:
    """One loss on noisy rewards: the best token's probability at the end over seeds, and how many seeds lost it."""

    loss: str
    staleness: int
    learning_rate: float
    final_mean: float
    final_min: float
    lost_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CispoClaim:
    """All rows, and the one-line findings that follow from them."""

    seeds: int
    rare: tuple[RareRow, ...]
    noisy: tuple[NoisyRow, ...]
    findings: tuple[str, ...]


def rare_choice(start_probability: float, batches: int) -> Choice:
    """16 tokens; token 0 is rare, and alone rewarded."""
    rest = (1 - start_probability) / 15
    return Choice(
        name=f"rare {start_probability:g}",
        start=(start_probability,) + (rest,) * 15,
        reward_chance=(1.0,) + (0.0,) * 15,
        batches=batches,
    )


def noisy_choice(staleness: int, batches: int = 60) -> Choice:
    """8 equal tokens, one of them right 6 times in 10 and the others 5; 64 draws a batch say little about that."""
    return Choice(
        name=f"noisy, {staleness} batches late",
        start=(1 / 8,) * 8,
        reward_chance=(0.6,) + (0.5,) * 7,
        batches=batches,
        draws=64,
        staleness=staleness,
        target=1.1,
    )


def run_cispo_claim(
    out: Path, *, plan: ClaimPlan | None = None, report: Callable[[str], None] = lambda line: None
) -> CispoClaim:
    """Run all losses on both cases; write `cispo.json` and two plots into `out`. Some two minutes of one core."""
    from training.experiments.cispo_plots import plot_noisy, plot_rare

    plan = plan or ClaimPlan()
    out.mkdir(parents=True, exist_ok=True)
    rare_runs, noisy_runs = _rare_runs(plan, report), _noisy_runs(plan, report)
    rare = tuple(_rare_row(key, made) for key, made in rare_runs.items())
    noisy = tuple(_noisy_row(key, made) for key, made in noisy_runs.items())
    claim = CispoClaim(seeds=plan.seeds, rare=rare, noisy=noisy, findings=findings(rare, noisy))
    (out / "cispo.json").write_text(json.dumps(asdict(claim), indent=1) + "\n")
    plot_rare(rare_runs, out / "cispo_rare_token.png")
    plot_noisy(noisy_runs, out / "cispo_noisy_rewards.png")
    return claim


def _rare_runs(plan: ClaimPlan, report: Callable[[str], None]) -> dict[tuple[float, float, str], Run]:
    runs = {}
    for start, rates, batches in plan.rare:
        for rate in rates:
            for name, loss in LOSSES.items():
                report(f"rare token at {start:g}, learning rate {rate:g}: {name}")
                runs[start, rate, name] = run(rare_choice(start, batches), loss, learning_rate=rate, seeds=plan.seeds)
    return runs


def _noisy_runs(plan: ClaimPlan, report: Callable[[str], None]) -> dict[tuple[int, float, str], Run]:
    runs = {}
    for staleness, rates in plan.noisy:
        choice = noisy_choice(staleness, plan.noisy_batches)
        for rate in rates:
            for name, loss in LOSSES.items():
                report(f"noisy rewards, {staleness} batches late, learning rate {rate:g}: {name}")
                runs[staleness, rate, name] = run(choice, loss, learning_rate=rate, seeds=2 * plan.seeds)
    return runs


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rare_row(key: tuple[float, float, str], made: Run) -> RareRow:
    start, rate, name = key
    needed_S = made.batches_to_target_S
    seen = made.first_seen_S >= 0
    return RareRow(
        loss=name,
        start_probability=start,
        learning_rate=rate,
        waited_median=_finite(np.median(np.where(seen, made.first_seen_S, np.inf))),
        batches_to_half_median=_finite(np.median(needed_S)),
        batches_to_half_max=_finite(needed_S.max()),
        gradient_share=tuple(float(x) for x in np.nanmean(made.gradient_share_SU[seen], axis=0)) if seen.any() else (),
    )


def _noisy_row(key: tuple[int, float, str], made: Run) -> NoisyRow:
    staleness, rate, name = key
    final_S = made.probability_SB[:, -1]
    return NoisyRow(
        loss=name,
        staleness=staleness,
        learning_rate=rate,
        final_mean=float(final_S.mean()),
        final_min=float(final_S.min()),
        lost_fraction=float((final_S < LOST_BELOW).mean()),
    )


def findings(rare: Sequence[RareRow], noisy: Sequence[NoisyRow]) -> tuple[str, ...]:
    """The claim in sentences made of the measured numbers, whichever way they point."""
    ppo_rare = {(r.start_probability, r.learning_rate): r for r in rare if r.loss == "ppo_clip"}
    ppo_noisy = {(r.staleness, r.learning_rate): r for r in noisy if r.loss == "ppo_clip"}
    lines = [
        _rare_line(ppo_rare[r.start_probability, r.learning_rate], r)
        for r in rare
        if r.loss == "cispo" and r.gradient_share
    ]
    lines += [_noisy_line(ppo_noisy[r.staleness, r.learning_rate], r) for r in noisy if r.loss == "cispo"]
    return tuple(lines)


def _rare_line(ppo: RareRow, cispo: RareRow) -> str:
    return (
        f"start {cispo.start_probability:g}, rate {cispo.learning_rate:g}: batches to one half after first seen: "
        f"ppo_clip {_say(ppo.batches_to_half_median)}, cispo {_say(cispo.batches_to_half_median)}; gradient share at "
        f"the last update of a batch: {ppo.gradient_share[-1]:.3f} and {cispo.gradient_share[-1]:.3f}"
    )


def _noisy_line(ppo: NoisyRow, cispo: NoisyRow) -> str:
    return (
        f"noisy rewards, {cispo.staleness} batches late, rate {cispo.learning_rate:g}: the best token ends at "
        f"{ppo.final_mean:.2f} (ppo_clip) and {cispo.final_mean:.2f} (cispo); seeds that lost it: "
        f"{ppo.lost_fraction:.0%} and {cispo.lost_fraction:.0%}"
    )


def _say(value: float | None) -> str:
    return "never" if value is None else f"{value:g}"
