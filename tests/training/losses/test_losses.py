"""The losses against literal values and gradients that were computed independently of this code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from training.losses.aggregation import Aggregation, ChainShape, token_weights
from training.losses.base import LossConfigError, LossWarning, TokenLoss, TokenTerms
from training.losses.cispo import Cispo
from training.losses.cispo_two_sided import CispoTwoSided
from training.losses.dapo import Dapo
from training.losses.dispo import Dispo
from training.losses.dr_grpo import DrGrpo
from training.losses.grpo import Grpo
from training.losses.gspo import Gspo, sequence_log_ratio
from training.losses.m1_mask import M1Mask
from training.losses.mismatch import IcePop, Mis, NoCorrection, Tis
from training.losses.names import LOSS_NAMES
from training.losses.nll import NegativeLogLikelihood
from training.losses.ppo_clip import PpoClip
from training.losses.registry import LOSSES, make_loss, make_mismatch
from training.losses.reinforce import Reinforce

TOKEN_MEAN = Aggregation(name="token_mean")
ROLLOUT_MEAN = Aggregation(name="rollout_mean")
OLD = torch.tensor([[-2, -2.1, -1.9, -2], [-6, -1, -5, -0.5]], dtype=torch.float64)
NEW = torch.tensor(
    [[-2.455715, -3.950112, -2.637205, -3.512223], [-3.542688, -2.388949, -3.638923, -4.686581]], dtype=torch.float64
)
ADVANTAGES = torch.tensor(
    [[1.135102, 0.759245, -3.594469, 0.019151], [0.105173, 0.960340, -0.567181, -0.570647]], dtype=torch.float64
)
EVEN = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
UNEVEN = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)


def terms(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor | None = None) -> TokenTerms:
    mask = torch.ones_like(new, dtype=torch.bool) if mask is None else mask
    rows = torch.arange(len(new))[:, None].expand_as(new) if new.dim() == 2 else torch.zeros_like(new)
    return TokenTerms(
        logprobs_N=new[mask],
        base_logprobs_N=old[mask],
        advantages_N=advantages[mask],
        rollout_index_N=rows[mask].long(),
        reference_logprobs_N=old[mask],
    )


def weights(mask: Tensor, aggregation: Aggregation) -> Tensor:
    chains = [
        ChainShape(rollout_id=str(i), group_id="g", num_loss_tokens=int(row.sum()), weight=1.0)
        for i, row in enumerate(mask)
    ]
    per_chain = torch.tensor(token_weights(chains, aggregation), dtype=torch.float64)
    return per_chain[:, None].expand_as(mask)[mask]


def total(loss: TokenLoss, mask: Tensor, aggregation: Aggregation, new: Tensor = NEW) -> Tensor:
    return (loss(terms(new, OLD, ADVANTAGES, mask)).loss_N * weights(mask, aggregation)).sum()


def line(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Cispo(max_ratio=5), -0.083283),
        (Cispo(max_ratio=4), -0.176432),
        (Dapo(), 0.445464),
        (Dapo(dual_clip=3), 0.445464),
        (PpoClip(), 0.447568),
    ],
)
def test_fixture_a_token_means(loss: TokenLoss, expected: float) -> None:
    assert float(total(loss, EVEN, TOKEN_MEAN)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "aggregation", "expected"),
    [
        (Cispo(), TOKEN_MEAN, -0.961968),
        (Cispo(), ROLLOUT_MEAN, -0.052228),
        (PpoClip(), TOKEN_MEAN, 0.281731),
        (PpoClip(), ROLLOUT_MEAN, -0.052062),
        (Dapo(), TOKEN_MEAN, 0.279627),
        (Dapo(dual_clip=3), TOKEN_MEAN, 0.151956),
        (Grpo(kl_beta=0.1), TOKEN_MEAN, 0.379324),
        (Grpo(kl_beta=0.1), ROLLOUT_MEAN, 0.017052),
        (DrGrpo(), Aggregation(name="fixed_length", fixed_length=4), 0.140865),
    ],
)
def test_fixture_f_rows_of_different_length(loss: TokenLoss, aggregation: Aggregation, expected: float) -> None:
    assert float(total(loss, UNEVEN, aggregation)) == pytest.approx(expected, abs=1e-6)


def test_fixture_f_gspo_sequence_ratios() -> None:
    ratios = torch.exp(sequence_log_ratio(terms(NEW, OLD, ADVANTAGES, UNEVEN)))
    assert_close(ratios, line([0.633995, 2.247488, 2.247488, 2.247488]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Cispo(), [-0.179912, -0.131466, -0.059862, 0.553057]),
        (PpoClip(), [-0.179912, 0.0, -0.059862, 0.553057]),
    ],
)
def test_fixture_f_ppo_zeroes_the_gradient_of_the_token_that_cispo_keeps(
    loss: TokenLoss, expected: list[float]
) -> None:
    new = NEW.clone().requires_grad_(True)
    total(loss, UNEVEN, TOKEN_MEAN, new).backward()
    assert new.grad is not None
    assert_close(new.grad[UNEVEN], line(expected), atol=1e-6, rtol=0)
    assert not new.grad[~UNEVEN].any()


def test_fixture_b_the_two_sided_clamp_lifts_small_ratios_and_the_cap_alone_does_not() -> None:
    case = terms(line([-1.69315, -1, -0.69741]), line([-1, -1, -3]), line([1, -1, -4]))
    two_sided = CispoTwoSided(min_ratio=0.8, max_ratio=2.0)
    with pytest.warns(LossWarning, match="nearly on-policy"):
        two_sided = CispoTwoSided(min_ratio=0.8, max_ratio=1.2)
    assert_close(two_sided(case).loss_N, line([1.35452, -1, -3.347568]), atol=1e-5, rtol=0)
    assert float(Cispo()(case).loss_N[0]) == pytest.approx(0.846575, abs=1e-5)


@pytest.mark.filterwarnings("ignore::training.losses.base.LossWarning")
def test_fixture_c_gradient_at_a_cap_of_1_2() -> None:
    new = line([0, 0.2]).requires_grad_(True)
    Cispo(max_ratio=1.2)(terms(new, line([0.1, -0.2]), line([1.3, -0.7]))).loss_N.sum().backward()
    assert new.grad is not None
    assert_close(new.grad, line([-1.176289, 0.84]), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore::training.losses.base.LossWarning")
def test_fixture_d_two_sided_values_and_mean() -> None:
    case = terms(line([-1.69315, -1, -0.59453]), line([-1, -1, -1]), line([1, -1, 2]))
    loss_N = CispoTwoSided(min_ratio=0.8, max_ratio=1.2)(case).loss_N
    assert_close(loss_N, line([1.35452, -1, 1.426872]), atol=1e-5, rtol=0)
    assert float(loss_N.mean()) == pytest.approx(0.593797, abs=1e-5)


@pytest.mark.parametrize(("old", "reach"), [(0.01, 0.012), (0.9, 1.08)])
def test_fixture_e_ppo_stops_pushing_a_rare_token_at_12_promille(old: float, reach: float) -> None:
    for probability, moves in ((reach * 0.999, True), (reach * 1.001, False)):
        new = line([math.log(probability)]).requires_grad_(True)
        PpoClip()(terms(new, line([math.log(old)]), line([1.0]))).loss_N.sum().backward()
        assert new.grad is not None
        assert bool(new.grad.abs() > 0) is moves


@pytest.mark.parametrize("cap", [2.0, 5.0, math.inf])
def test_cispo_gradient_is_minus_capped_ratio_times_advantage_for_every_token(cap: float) -> None:
    generator = torch.Generator().manual_seed(3)
    new = (torch.randn(200, generator=generator, dtype=torch.float64) * 3).requires_grad_(True)
    old, advantages = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    Cispo(max_ratio=cap)(terms(new, old, advantages)).loss_N.sum().backward()
    assert new.grad is not None
    assert_close(new.grad, -torch.exp(new.detach() - old).clamp(max=cap) * advantages)
    assert (new.grad != 0).all()


def test_dispo_clamps_the_ratio_of_good_and_bad_tokens_apart() -> None:
    ratios = line([0.5, 2.0, 20.0, 0.5, 2.0, 200.0])
    new = line([-1.0] * 6).requires_grad_(True)
    result = Dispo()(terms(new, -1 - ratios.log(), line([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])))
    result.loss_N.sum().backward()
    assert_close(result.loss_N.detach(), line([0.8, 2.0, 11.0, -0.5, -2.0, -101.0]))
    assert_close(new.grad, line([-0.8, -2.0, -11.0, 0.5, 2.0, 101.0]))  # no token loses its gradient
    assert result.clipped_N.tolist() == [True, False, True, False, False, True]


def test_m1_mask_has_the_gradient_of_ppo_clip_wherever_the_cap_does_not_bind() -> None:
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(200, generator=generator, dtype=torch.float64)
    old, advantages = torch.randn(2, 200, generator=generator, dtype=torch.float64)
    grads = []
    for loss in (M1Mask(max_ratio=math.inf), PpoClip()):
        new = start.clone().requires_grad_(True)
        loss(terms(new, old, advantages)).loss_N.sum().backward()
        grads.append(new.grad)
    assert_close(grads[0], grads[1])
    assert (grads[0] == 0).sum() > 20  # type: ignore[union-attr]


def test_reinforce_ignores_the_ratio_and_nll_the_advantage() -> None:
    case = terms(line([-1.0, -2.0]), line([-9.0, -9.0]), line([2.0, -1.0]))
    assert Reinforce()(case).loss_N.tolist() == [2.0, -2.0]
    assert NegativeLogLikelihood()(case).loss_N.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("loss", [PpoClip(), Grpo(kl_beta=0.1), Dapo(), Dapo(dual_clip=3), DrGrpo(), Gspo()])
def test_gradients_agree_with_finite_differences(loss: TokenLoss) -> None:
    def scalar(new: Tensor) -> Tensor:
        return total(loss, UNEVEN, ROLLOUT_MEAN, new)

    assert torch.autograd.gradcheck(scalar, (NEW.clone().requires_grad_(True),), eps=1e-7, atol=1e-6)


@pytest.mark.parametrize("cap", [1.0, 0.2, 0.0, -1.0, math.nan])
def test_a_cap_at_or_below_one_is_refused_with_the_offset_it_may_have_meant(cap: float) -> None:
    with pytest.raises(LossConfigError, match="absolute cap"):
        Cispo(max_ratio=cap)


def test_a_cap_below_two_is_warned_of() -> None:
    with pytest.warns(LossWarning, match=r"max_ratio 1\.28"):
        Cispo(max_ratio=1.28)


def test_contradictory_losses_are_refused() -> None:
    with pytest.raises(LossConfigError, match="dual_clip"):
        Dapo(dual_clip=1.1)
    with pytest.raises(LossConfigError, match=r"incorrect tokens to \[1\.2, 101"):
        Dispo(incorrect_min=1.2)
    with pytest.raises(LossConfigError, match="clip_low"):
        PpoClip(clip_low=1.0)
    with pytest.raises(LossConfigError, match="reference"):
        Grpo(kl_beta=0.1)(
            TokenTerms(
                logprobs_N=line([0.0]),
                base_logprobs_N=line([0.0]),
                advantages_N=line([1.0]),
                rollout_index_N=torch.zeros(1, dtype=torch.long),
            )
        )
    with pytest.raises(LossConfigError, match=r"no setting eps_high; it takes max_ratio=5\.0"):
        make_loss("cispo", eps_high=0.2)
    with pytest.raises(LossConfigError, match="unknown loss 'grpoo'"):
        make_loss("grpoo")
    with pytest.raises(LossConfigError, match="fixed_length"):
        Aggregation(name="token_mean", fixed_length=8)


def test_the_registry_makes_every_loss_by_name() -> None:
    assert make_loss("cispo", max_ratio=4.0) == Cispo(max_ratio=4.0)
    assert make_mismatch("tis") == Tis(cap=2.0)
    assert {"cispo", "grpo", "ppo_clip", "dapo", "gspo", "dr_grpo", "m1_mask", "reinforce", "nll"} <= set(LOSSES)
    assert sorted(LOSSES) == sorted(LOSS_NAMES)


def test_mismatch_corrections() -> None:
    q_N = line([0.1, 0.5, 1.0, 3.0, 9.0])
    assert NoCorrection()(q_N).tolist() == [1, 1, 1, 1, 1]
    assert Tis()(q_N).tolist() == [0.1, 0.5, 1.0, 2.0, 2.0]
    assert Mis()(q_N).tolist() == [0.1, 0.5, 1.0, 0.0, 0.0]
    assert IcePop()(q_N).tolist() == [0.0, 0.5, 1.0, 3.0, 0.0]


def chain(rollout: str, tokens: int, weight: float, group: str = "g") -> ChainShape:
    return ChainShape(rollout_id=rollout, group_id=group, num_loss_tokens=tokens, weight=weight)


@pytest.mark.parametrize(
    ("aggregation", "whole", "other"),
    [
        (TOKEN_MEAN, 1 / 50, 1 / 50),
        (ROLLOUT_MEAN, 1 / 80, 1 / 20),
        (Aggregation(name="prompt_mean"), 1 / 80, 1 / 20),
        (Aggregation(name="fixed_length", fixed_length=100), 1 / 200, 1 / 200),
    ],
)
def test_splitting_a_rollout_into_chains_changes_no_token_weight(
    aggregation: Aggregation, whole: float, other: float
) -> None:
    one = token_weights([chain("a", 40, 1.0, "g1"), chain("b", 10, 1.0, "g2")], aggregation)
    split = token_weights(
        [chain("a", 30, 0.75, "g1"), chain("a", 10, 0.25, "g1"), chain("a", 7, 0.0, "g1"), chain("b", 10, 1.0, "g2")],
        aggregation,
    )
    assert one == pytest.approx([whole, other])
    assert split == pytest.approx([whole, whole, 0.0, other])


def test_prompt_mean_counts_each_group_once() -> None:
    made = token_weights([chain("a", 30, 1, "g"), chain("b", 10, 1, "g"), chain("c", 5, 1, "h")],
                         Aggregation(name="prompt_mean"))  # fmt: skip
    assert made == pytest.approx([1 / 80, 1 / 80, 1 / 10])
