"""An iteration as flat numbers: what its training step reported, and what it had to do without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks_fakes import a_group, a_task, desk_at, verdicts_of

from environments.types import Chain, Segment, Usage
from tasks.policies import Policy
from tasks.report import TrainingRecord, iteration_metrics
from tasks.stage import Desk, Stage, Work, perform
from training.curriculum.base import Selection
from training.curriculum.monitor import Share, ZeroGradientReport

STEP = {
    "loss": -0.25,
    "kl_to_behaviour": 0.001,
    "kl_to_start": 0.05,
    "rare_token_gradient_share": 0.08,
    "rare_word_counts": {"wait": 0, "but": 7},
    "decile_gradient_share": [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01],
    "ratio_histogram": [0, 0, 1, 2, 90, 4, 2, 1, 0, 0],
}
NOT_WHOLE = {"groups": {"incomplete": ["g0"], "too_small": ["g1", "g2"], "unjudged": ["g1-0"], "zero_variance": []}}


def a_chain(cause: str, ids: tuple[int, ...]) -> Chain:
    segment = Segment(ids=ids, logprobs=(-1.0,) * len(ids), trainable=True, call_id="c", policy_version=0)
    return Chain(
        chain_id=f"chain-{cause}", rollout_id="g0-0", agent_id="main", role="main", parent_chain_id=None,
        fork_cause=cause, segments=(segment,),
    )  # fmt: skip


def metrics_of(desk: Desk, report: dict[str, Any]) -> dict[str, float]:
    """The metrics of an iteration of one group whose first rollout forked once and lost 4 of its 9 tokens."""

    def make(out: Path, scratch: Path) -> int:
        out.mkdir()
        (out / "report.json").write_text(json.dumps(report))
        return 0

    made = perform(desk, Work(stage=Stage(name="given", version=1, kind="policy"), parents=(), section=0, make=make))
    group = a_group("g0", a_task("t0"), 2)
    usage = Usage(turns=1, calls=3, prompt_tokens=5, completion_tokens=9, wall_s=1.0, sandbox_s=0.5)
    forked = replace(group.members[0], chains=(a_chain("root", (1, 2, 3)), a_chain("compacted", (4, 5))), usage=usage)
    silent = replace(group.members[1], chains=(), usage=replace(usage, completion_tokens=0))
    group = replace(group, members=(forked, silent))
    none = Share(groups=0, rollouts=0, tokens=0)
    zero = ZeroGradientReport(
        policy_version=0, all_fail=none, all_pass=none, mixed=none, expected_useful=None, surprise=None, alarm=""
    )
    record = TrainingRecord(
        number=0,
        policy=Policy(manifest=made, version=1),
        selection=Selection(strategy="uniform", policy_version=0, seed=0, decisions=()),
        groups=(group,),
        verdicts=tuple(verdicts_of(group, True, False)),
        quality=made,
        measured_apart=0,
        zero_gradient=zero,
    )
    return iteration_metrics(desk, record)


def test_the_spread_of_gradient_and_ratios_the_divergence_and_the_forks_are_metrics(tmp_path):
    metrics = metrics_of(desk_at(tmp_path), {**STEP, **NOT_WHOLE})
    assert metrics["train/kl_to_start"] == 0.05
    assert (metrics["train/rare_words/wait"], metrics["train/rare_words/but"]) == (0, 7)
    assert (metrics["train/gradient_share/tenth_01"], metrics["train/gradient_share/tenth_10"]) == (0.4, 0.01)
    assert (metrics["train/ratio_share/0.95-1.05"], metrics["train/ratio_share/10-inf"]) == (0.9, 0)
    assert (metrics["groups/incomplete"], metrics["groups/too_small"], metrics["rollouts/unjudged"]) == (1, 2, 1)
    assert (metrics["recording/chains"], metrics["recording/forks/compacted"]) == (2, 1)
    assert (metrics["recording/tokens_in_chains"], metrics["recording/untrained_tokens"]) == (5, 4)


def test_a_step_that_was_skipped_has_none_of_its_own(tmp_path):
    metrics = metrics_of(desk_at(tmp_path), {"skipped": "no group with a difference in it", **NOT_WHOLE})
    assert not [name for name in metrics if name.startswith("train/")]
    assert metrics["groups/too_small"] == 2
