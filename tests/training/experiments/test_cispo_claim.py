"""The claim writes what it measured, for and against."""

from __future__ import annotations

import json
from pathlib import Path

from training.experiments.cispo_claim import LOSSES, ClaimPlan, NoisyRow, RareRow, findings, run_cispo_claim

SMALL = ClaimPlan(seeds=2, rare=((1e-2, (0.3,), 4),), noisy=((1, (1.0,)),), noisy_batches=3)


def test_a_small_plan_runs_every_loss_and_writes_numbers_and_plots(tmp_path: Path) -> None:
    told: list[str] = []
    claim = run_cispo_claim(tmp_path / "claim", plan=SMALL, report=told.append)
    assert len(told) == 2 * len(LOSSES)
    written = json.loads((tmp_path / "claim" / "cispo.json").read_text())
    assert [row["loss"] for row in written["rare"]] == list(LOSSES)
    rows = {row.loss: row for row in claim.rare}
    assert rows["ppo_clip"].gradient_share[-1] == 0
    assert rows["cispo"].gradient_share[-1] > 0.5
    assert rows["cispo"].batches_to_half_median == 1
    assert rows["ppo_clip"].batches_to_half_median is None  # not within four batches
    for name in ("cispo_rare_token.png", "cispo_noisy_rewards.png"):
        assert (tmp_path / "claim" / name).read_bytes().startswith(b"\x89PNG")


def rare(loss: str, median: float | None) -> RareRow:
    return RareRow(
        loss=loss, start_probability=0.01, learning_rate=0.1, waited_median=0, batches_to_half_median=median,
        batches_to_half_max=None, gradient_share=(0.5, 0.25),
    )  # fmt: skip


def noisy(loss: str, mean: float, lost: float) -> NoisyRow:
    return NoisyRow(loss=loss, staleness=0, learning_rate=3.0, final_mean=mean, final_min=0.0, lost_fraction=lost)


def test_findings_say_the_numbers_whichever_way_they_point() -> None:
    lines = findings(
        [rare("ppo_clip", None), rare("cispo", 8)], [noisy("ppo_clip", 0.91, 0.0), noisy("cispo", 0.66, 0.2)]
    )
    assert "ppo_clip never, cispo 8" in lines[0]
    assert "ends at 0.91 (ppo_clip) and 0.66 (cispo); seeds that lost it: 0% and 20%" in lines[1]
