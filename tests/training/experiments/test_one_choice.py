"""The one-choice experiment is what it says it is, and shows the claim in small."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from training.advantages import AdvantageConfig, GroupRewards, batch_advantages
from training.experiments.cispo_claim import noisy_choice, rare_choice
from training.experiments.one_choice import Choice, _Batch, _share, _update, group_advantages, run
from training.losses.cispo import Cispo
from training.losses.ppo_clip import PpoClip


def test_its_advantages_are_those_of_the_trainer() -> None:
    rewards_SN = (np.random.default_rng(0).random((1, 64)) < 0.3).astype(float)
    ours = group_advantages(rewards_SN, 8)[0]
    groups = [
        GroupRewards(
            group_id=str(g),
            rollout_ids=tuple(f"{g}.{i}" for i in range(8)),
            rewards_G=tuple(rewards_SN[0, 8 * g : 8 * g + 8]),
            requested_size=8,
        )
        for g in range(8)
    ]
    theirs = batch_advantages(groups, AdvantageConfig()).by_rollout
    assert [ours[i] for i in range(64)] == pytest.approx([theirs.get(f"{i // 8}.{i % 8}", 0.0) for i in range(64)])


def test_its_gradient_step_is_that_of_autograd() -> None:
    logits = torch.randn(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[0, 3, 3, 1]])
    advantages = torch.tensor([[1.0, -0.5, 2.0, -1.0]], dtype=torch.float64)
    old = torch.tensor([[-1.0, -2.0, -2.0, -0.7]], dtype=torch.float64)
    moved, _ = _update(logits, _Batch(tokens, old, advantages), Cispo(), 0.1)
    leaf = logits.clone().requires_grad_(True)
    logprobs = torch.log_softmax(leaf, 1).gather(1, tokens)
    (-(torch.exp(logprobs - old).clamp(max=5).detach()) * advantages * logprobs).mean().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(moved, logits - 0.1 * leaf.grad)


def test_the_share_is_of_logit_gradient_norms() -> None:
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    share = _share(torch.tensor([[0, 1]]), torch.tensor([[3.0, -1.0]], dtype=torch.float64), probs)
    # |onehot - softmax| is sqrt(2) * .75 for token 0 and sqrt(2) * .25 for token 1
    assert share[0] == pytest.approx(3 * 0.75 / (3 * 0.75 + 0.25))


def test_ppo_drops_the_rare_token_within_a_batch_and_cispo_does_not() -> None:
    shares = {}
    batches = {}
    for name, loss in (("ppo", PpoClip()), ("cispo", Cispo())):
        made = run(rare_choice(0.01, 40), loss, learning_rate=0.3, seeds=3)
        shares[name], batches[name] = made.gradient_share_SU.mean(0), made.batches_to_target_S
    assert shares["ppo"][0] == pytest.approx(shares["cispo"][0])
    assert shares["ppo"][-1] == 0
    assert shares["cispo"][-1] > 0.5
    assert batches["ppo"].min() > 3 * batches["cispo"].max()


def test_with_steps_that_stay_inside_the_trust_region_the_losses_agree() -> None:
    made = [run(rare_choice(0.01, 3), loss, learning_rate=0.01, seeds=2) for loss in (PpoClip(), Cispo())]
    np.testing.assert_allclose(made[0].probability_SB, made[1].probability_SB, rtol=1e-9)


def test_a_stale_batch_is_trained_on_later_and_a_seed_does_not_depend_on_its_neighbours() -> None:
    late = run(noisy_choice(4), PpoClip(), learning_rate=1.0, seeds=2)
    assert (late.probability_SB[:, :4] == late.probability_SB[0, 0]).all()
    alone = run(noisy_choice(4), PpoClip(), learning_rate=1.0, seeds=1, first_seed=1)
    np.testing.assert_allclose(alone.probability_SB[0], late.probability_SB[1], rtol=1e-9)


def test_a_token_that_is_never_drawn_is_never_learned() -> None:
    never = Choice(name="never", start=(1e-300, 0.5, 0.5), reward_chance=(1.0, 0.0, 0.0), batches=3)
    made = run(never, Cispo(), learning_rate=1.0, seeds=2)
    assert made.first_seen_S.tolist() == [-1, -1]
    assert made.batches_to_target_S.tolist() == [math.inf, math.inf]
