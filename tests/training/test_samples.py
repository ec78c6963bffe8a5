"""Chains and verdicts become samples: who trains, with what weight, and what is left out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fake_records import a_chain, a_rollout, rendered, sampled

from environments.types import Chain, Group, Judged, Role, Trajectory, Unjudged, Verdict
from infra.engines.base import Sampling
from training.advantages import AdvantageConfig
from training.samples import CreditRule, SampleError, demonstration_samples, samples_from

SAMPLING = Sampling(temperature=0.7)
CONFIG = AdvantageConfig()


def chain(rollout: str, name: str, tokens: int, role: Role = "main") -> Chain:
    segments = (rendered(1, 2, 3), sampled(*(7,) * tokens, version=4), rendered(9))
    return a_chain(rollout, *segments, chain_id=f"{rollout}.{name}", role=role)


def rollout(index: int, *chains: Chain) -> Trajectory:
    name = f"r{index}"
    return a_rollout(name, index=index, chains=chains or (chain(name, "c0", 5),), version=4)


def group(*members: Trajectory, size: int | None = None) -> Group:
    return Group(group_id="g", task_id="t", task_digest="d", requested_size=size or len(members), members=members)


def verdict(index: int, reward: float) -> Judged:
    made = Verdict(gates=(), scores=(), reward=reward, passed=reward > 0)
    return Judged(rollout_id=f"r{index}", group_id="g", task_id="t", result=made)


def judged(*rewards: float) -> dict[str, Judged]:
    return {f"r{i}": verdict(i, reward) for i, reward in enumerate(rewards)}


def test_a_chain_becomes_arrays_with_its_recorded_tokens() -> None:
    batch = samples_from([group(rollout(0), rollout(1))], judged(1, 0), SAMPLING, CONFIG)
    good, bad = batch.samples
    assert good.token_ids.tolist() == [1, 2, 3, 7, 7, 7, 7, 7, 9]
    assert good.loss_mask.tolist() == [False] * 3 + [True] * 5 + [False]
    np.testing.assert_array_equal(good.behaviour_logprobs, np.float32([0, 0, 0, -0.5, -0.5, -0.5, -0.5, -0.5, 0]))
    assert good.advantages.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert bad.advantages.tolist() == [0, 0, 0, -1, -1, -1, -1, -1, 0]
    assert good.policy_versions.tolist() == [-1] * 3 + [4] * 5 + [-1]
    assert (good.weight, good.temperature) == (1.0, 0.7)


def test_a_rollouts_weight_is_one_however_many_chains_and_side_calls_do_not_train() -> None:
    many = rollout(
        0,
        chain("r0", "main", 6),
        chain("r0", "helper", 3, "sub_agent"),
        chain("r0", "more", 3),
        chain("r0", "title", 50, "side"),
    )
    batch = samples_from([group(many, rollout(1))], judged(1, 0), SAMPLING, CONFIG)
    assert [(s.chain_id, s.weight) for s in batch.samples] == [
        ("r0.main", 0.5), ("r0.helper", 0.25), ("r0.more", 0.25), ("r1.c0", 1.0),
    ]  # fmt: skip


def test_a_declared_credit_rule_shifts_weight_within_the_rollout() -> None:
    two = rollout(0, chain("r0", "main", 6), chain("r0", "helper", 6, "sub_agent"))
    rule = CreditRule(sub_agent=0.5)
    batch = samples_from([group(two, rollout(1))], judged(1, 0), SAMPLING, CONFIG, rule)
    assert [s.weight for s in batch.samples] == pytest.approx([2 / 3, 1 / 3, 1.0])


def test_a_rollout_without_a_verdict_neither_trains_nor_moves_the_baseline() -> None:
    verdicts = judged(1, 0, 0)
    verdicts["r2"] = dataclasses.replace(verdicts["r2"], result=Unjudged(reason="the grader's host died"))
    batch = samples_from([group(rollout(0), rollout(1), rollout(2))], verdicts, SAMPLING, CONFIG)
    assert {s.rollout_id: float(s.advantages.sum()) for s in batch.samples} == {"r0": 5.0, "r1": -5.0}
    assert batch.unjudged == ("r2",)
    assert batch.advantages.incomplete == ("g",)


def test_a_group_that_agrees_gives_no_samples_and_is_named() -> None:
    batch = samples_from([group(rollout(0), rollout(1))], judged(1, 1), SAMPLING, CONFIG)
    assert batch.samples == ()
    assert batch.advantages.zero_variance == ("g",)


def test_a_rollout_that_sampled_nothing_is_named() -> None:
    batch = samples_from([group(rollout(0, chain("r0", "c", 0)), rollout(1))], judged(0, 1), SAMPLING, CONFIG)
    assert batch.empty == ("r0",)
    assert [s.rollout_id for s in batch.samples] == ["r1"]


def test_demonstrations_are_samples_with_advantage_one() -> None:
    (sample,) = demonstration_samples([rollout(0)])
    assert sample.advantages.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("sampling", "says"),
    [(Sampling(temperature=0), "greedy"), (Sampling(top_p=0.9), "top_p 0.9"), (Sampling(top_k=20), "top_k 20")],
)
def test_sampling_that_the_trainer_cannot_score_again_is_refused(sampling: Sampling, says: str) -> None:
    with pytest.raises(SampleError, match=says):
        samples_from([group(rollout(0), rollout(1))], judged(1, 0), sampling, CONFIG)


def test_a_member_nobody_judged_is_refused() -> None:
    with pytest.raises(SampleError, match="no Judged for r1"):
        samples_from([group(rollout(0), rollout(1))], judged(1), SAMPLING, CONFIG)


def test_arrays_that_contradict_each_other_are_refused() -> None:
    good, _ = samples_from([group(rollout(0), rollout(1))], judged(1, 0), SAMPLING, CONFIG).samples
    with pytest.raises(SampleError, match=r"advantages has shape \(3,\); token_ids has 9"):
        dataclasses.replace(good, advantages=np.zeros(3, dtype=np.float32))
    with pytest.raises(SampleError, match="token 0 is marked as sampled"):
        dataclasses.replace(good, loss_mask=np.ones(9, dtype=np.bool_))
    with pytest.raises(SampleError, match="behaviour_logprobs holds NaN"):
        dataclasses.replace(good, behaviour_logprobs=np.full(9, np.nan, dtype=np.float32))
    with pytest.raises(SampleError, match="temperature is 0"):
        dataclasses.replace(good, temperature=0.0)
