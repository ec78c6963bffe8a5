"""The trainer on a tiny Llama: exactness, invariance, determinism, guards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from training.config import OptimizerConfig, TrainConfig
from training.guards import TrainingHalted
from training.losses.aggregation import Aggregation, ChainShape, token_weights
from training.losses.base import LossConfigError, LossWarning, TokenLoss
from training.losses.cispo import Cispo
from training.losses.dr_grpo import DrGrpo
from training.losses.grpo import Grpo
from training.losses.gspo import Gspo
from training.losses.mismatch import Tis
from training.losses.nll import NegativeLogLikelihood
from training.losses.ppo_clip import PpoClip
from training.model import ModelError
from training.samples import Sample
from training.trainer import Trainer, TrainError, num_threads

Make = Callable[..., list[Sample]]
SGD = OptimizerConfig(name="sgd", learning_rate=0.1, max_grad_norm=1e9)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.named_parameters()}


def trained(folder: Path, samples: list[Sample], **fields: Any) -> tuple[Trainer, Any]:
    trainer = Trainer(folder, TrainConfig(**{"optimizer": SGD, **fields}))
    return trainer, trainer.train_step(samples)


def plain_gradients(folder: Path, samples: list[Sample], max_ratio: float) -> tuple[float, dict[str, torch.Tensor]]:
    """CISPO's token mean the long way: one padded-free forward a sample, full logits, autograd through log_softmax."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    count = sum(s.num_loss_tokens for s in samples)
    total = torch.zeros(())
    for s in samples:
        logits = model(torch.from_numpy(s.token_ids).long()[None]).logits[0, :-1] / s.temperature
        picked = logits.log_softmax(-1).gather(1, torch.from_numpy(s.token_ids).long()[1:, None])[:, 0]
        mask = torch.from_numpy(s.loss_mask[1:])
        ratio = torch.exp(picked - torch.from_numpy(s.behaviour_logprobs[1:])).clamp(max=max_ratio).detach()
        total = total - (ratio * torch.from_numpy(s.advantages[1:]) * picked)[mask].sum() / count
    total.backward()
    return float(total.detach()), {n: p.grad for n, p in model.named_parameters()}


def test_one_step_equals_the_loss_and_gradient_computed_the_long_way(tiny_llama: Path, make_samples: Make) -> None:
    samples = make_samples()
    before = weights_of(Trainer(tiny_llama, TrainConfig(optimizer=SGD)))
    loss, gradients = plain_gradients(tiny_llama, samples, max_ratio=5.0)
    trainer, report = trained(tiny_llama, samples, chunk_elements=96 * 5)
    assert report.loss == pytest.approx(loss, abs=1e-5)
    for name, gradient in gradients.items():
        moved = (before[f"model.{name}"] - weights_of(trainer)[f"model.{name}"]) / 0.1
        assert_close(moved, gradient, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("loss", [Cispo(), PpoClip(), Gspo()], ids=lambda loss: loss.name)
def test_packing_microbatches_and_chunks_change_nothing(tiny_llama: Path, make_samples: Make, loss: TokenLoss) -> None:
    samples = make_samples(8)
    settings = [
        {"token_budget": 10_000, "chunk_elements": 2**20},
        {"token_budget": 1, "chunk_elements": 96},
        {"token_budget": 70, "chunk_elements": 96 * 7},
    ]
    runs = [trained(tiny_llama, samples, loss=loss, **s) for s in settings]
    for trainer, report in runs[1:]:
        assert report.loss == pytest.approx(runs[0][1].loss, abs=1e-6)
        for name, value in weights_of(trainer).items():
            assert_close(value, weights_of(runs[0][0])[name], atol=1e-6, rtol=1e-5)


def test_packing_changes_no_log_probability(tiny_llama: Path, make_samples: Make) -> None:
    samples = make_samples(8)
    alone, packed = (Trainer(tiny_llama, TrainConfig(token_budget=budget)).logprobs(samples) for budget in (1, 10_000))
    assert max(np.abs(a - b).max() for a, b in zip(alone, packed, strict=True)) < 1e-5


def split_in_two(sample: Sample) -> list[Sample]:
    """The same tokens with the trained ones divided among two chains by share."""
    trained_at = np.flatnonzero(sample.loss_mask)
    halves = np.split(trained_at, [len(trained_at) // 3])
    parts = []
    for number, half in enumerate(halves):
        mask = np.zeros_like(sample.loss_mask)
        mask[half] = True
        weight = len(half) / len(trained_at)
        parts.append(dataclasses.replace(sample, loss_mask=mask, weight=weight, chain_id=f"{sample.chain_id}-{number}"))
    return parts


@pytest.mark.parametrize("loss", [Cispo(), Gspo()], ids=lambda loss: loss.name)
def test_the_number_of_chains_of_a_rollout_changes_nothing(
    tiny_llama: Path, make_samples: Make, loss: TokenLoss
) -> None:
    samples = make_samples(4)
    split = [part for s in samples for part in split_in_two(s)]
    whole, parts = (
        trained(tiny_llama, batch, loss=loss, aggregation=Aggregation(name="rollout_mean"), token_budget=64)
        for batch in (samples, split)
    )
    assert parts[1].loss == pytest.approx(whole[1].loss, abs=1e-6)
    for name, value in weights_of(whole[0]).items():
        assert_close(weights_of(parts[0])[name], value, atol=1e-6, rtol=1e-5)


def test_the_trainer_computes_with_its_own_number_of_threads_whatever_was_set_before(
    tiny_llama: Path, make_samples: Make
) -> None:
    before = torch.get_num_threads()
    weights = []
    try:
        for left in (1, num_threads() + 1):
            torch.set_num_threads(left)
            trainer, _ = trained(tiny_llama, make_samples())
            assert torch.get_num_threads() == num_threads()
            weights.append(weights_of(trainer))
    finally:
        torch.set_num_threads(before)
    first, second = weights
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_same_inputs_give_bitwise_the_same_weights(tiny_llama: Path, make_samples: Make) -> None:
    runs = []
    for _ in range(2):
        trainer = Trainer(
            tiny_llama,
            TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-2), updates_per_batch=3, passes_per_batch=2),
        )
        reports = [trainer.train_step(make_samples(8, seed=s)) for s in range(2)]
        runs.append((weights_of(trainer), [r.loss for r in reports]))
    assert runs[0][1] == runs[1][1]
    assert all(torch.equal(value, runs[1][0][name]) for name, value in runs[0][0].items())


def test_gradient_checkpointing_changes_nothing(tiny_llama: Path, make_samples: Make) -> None:
    plain, saving = (trained(tiny_llama, make_samples(), gradient_checkpointing=on)[0] for on in (False, True))
    for name, value in weights_of(plain).items():
        assert_close(weights_of(saving)[name], value, atol=1e-7, rtol=1e-6)


def test_bfloat16_autocast_keeps_a_float32_head_and_stays_near(tiny_llama: Path, make_samples: Make) -> None:
    exact, rounded = (trained(tiny_llama, make_samples(), precision=p)[1] for p in ("float32", "bfloat16"))
    assert rounded.loss == pytest.approx(exact.loss, rel=0.05)
    assert rounded.loss != exact.loss


def test_supervised_steps_raise_the_likelihood_of_the_demonstrations(tiny_llama: Path, make_samples: Make) -> None:
    trainer = Trainer(
        tiny_llama,
        TrainConfig(loss=NegativeLogLikelihood(), optimizer=OptimizerConfig(learning_rate=1e-2, warmup_updates=2)),
    )
    losses = [trainer.train_step(make_samples(4)).loss for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]


def test_where_prompts_weigh_alike_no_group_is_parted_among_updates(tiny_llama: Path, make_samples: Make) -> None:
    groups = ["small"] * 2 + ["large"] * 6 + ["other"] * 4
    samples = [
        dataclasses.replace(s, group_id=g, chain_id=f"c{n}", rollout_id=f"r{n}")
        for n, (g, s) in enumerate(zip(groups, make_samples(12, lengths=(20, 21)), strict=True))
    ]
    assert samples[0].num_loss_tokens == 13
    for seed in range(4):
        sizes = {}
        for name in ("prompt_mean", "rollout_mean"):
            config = TrainConfig(aggregation=Aggregation(name=name), optimizer=SGD, updates_per_batch=2, seed=seed)
            report = Trainer(tiny_llama, config).train_step(samples)
            sizes[name] = sorted(u.num_loss_tokens // 13 for u in report.updates)
        assert sizes["prompt_mean"] in ([6, 6], [4, 8], [2, 10])
        assert sizes["rollout_mean"] == [6, 6]
    both = TrainConfig(aggregation=Aggregation(name="prompt_mean"), optimizer=SGD, updates_per_batch=9)
    assert [u.num_loss_tokens // 13 for u in Trainer(tiny_llama, both).train_step(samples).updates] in (
        [a, b, 12 - a - b] for a in (2, 4, 6) for b in (2, 4, 6) if a != b
    )


def test_a_report_counts_what_happened(tiny_llama: Path, make_samples: Make) -> None:
    samples = make_samples(6)
    config = TrainConfig(
        loss=Grpo(kl_beta=1e-9), optimizer=SGD, updates_per_batch=3, passes_per_batch=2, start_folder=tiny_llama
    )
    report = Trainer(tiny_llama, config, policy_version=4).train_step(samples)
    assert (report.step, report.policy_version, report.staleness_max) == (1, 5, 4)
    assert len(report.updates) == 6
    assert sum(report.ratio_histogram) == 2 * sum(s.num_loss_tokens for s in samples)
    assert report.ratio_histogram[3] == sum(u.ratio_histogram[3] for u in report.updates)
    assert all(sum(u.decile_gradient_share) == pytest.approx(1.0) for u in report.updates)
    assert sum(report.decile_gradient_share) == pytest.approx(1.0)
    assert len(report.decile_gradient_share) == 10
    assert report.updates[0].kl_to_start == pytest.approx(0.0, abs=1e-9)
    assert report.updates[2].kl_to_start is not None
    assert report.updates[2].kl_to_start > 0
    assert 0 < report.entropy < np.log(96)


def test_the_proximal_ratio_starts_at_one_and_tis_weighs_the_mismatch(tiny_llama: Path, make_samples: Make) -> None:
    samples = make_samples(4)
    plain = trained(tiny_llama, samples, ratio_base="proximal")[1]
    assert plain.ratio_mean == pytest.approx(1.0, abs=1e-5)
    corrected, _ = trained(tiny_llama, samples, ratio_base="proximal", mismatch=Tis(cap=2.0))
    assert corrected.config.mismatch == Tis(cap=2.0)
    direct, report = trained(tiny_llama, samples, loss=Cispo(max_ratio=2.0))
    # on the first update, TIS at cap 2 times a ratio of 1 is CISPO at cap 2 against the behaviour policy
    for name, value in weights_of(direct).items():
        assert_close(weights_of(corrected)[name], value, atol=1e-6, rtol=1e-4)
    assert report.clipped_fraction > 0


def test_a_kl_term_reads_the_start_policy(tiny_llama: Path, make_samples: Make) -> None:
    with pytest.raises(LossConfigError, match="start_folder"):
        TrainConfig(loss=Grpo(kl_beta=0.1))
    slow = OptimizerConfig(name="sgd", learning_rate=3e-3)
    config = {"start_folder": tiny_llama, "passes_per_batch": 4, "optimizer": slow}
    held, free = (trained(tiny_llama, make_samples(), loss=Grpo(kl_beta=b), **config)[1] for b in (5.0, 1e-9))
    assert held.updates[-1].kl_to_start < free.updates[-1].kl_to_start


def test_a_sample_that_breaks_the_gradient_stops_the_step_and_is_named(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    samples = make_samples(4)
    advantages, behaviour = samples[2].advantages.copy(), samples[2].behaviour_logprobs.copy()
    advantages[10], behaviour[10] = np.float32(3e38), np.float32(-50)  # times the cap of 5: beyond float32
    samples[2] = dataclasses.replace(samples[2], advantages=advantages, behaviour_logprobs=behaviour)
    trainer = Trainer(tiny_llama, TrainConfig(optimizer=SGD))
    before = weights_of(trainer)
    with pytest.raises(TrainingHalted, match="not finite") as halted:
        trainer.train_step(samples)
    assert halted.value.sample_ids == ("c2",)
    halted.value.save(tmp_path / "halted.json")
    assert json.loads((tmp_path / "halted.json").read_text())["sample_ids"] == ["c2"]
    assert all(torch.equal(value, before[name]) for name, value in weights_of(trainer).items())


def test_a_spike_stops_the_step_and_names_the_largest_sample_first(tiny_llama: Path, make_samples: Make) -> None:
    trainer = Trainer(tiny_llama, TrainConfig(optimizer=OptimizerConfig(learning_rate=1e-6), spike_factor=20))
    for seed in range(8):
        trainer.train_step(make_samples(4, seed=seed))
    samples = make_samples(4)
    samples[1] = dataclasses.replace(samples[1], advantages=samples[1].advantages * 1e4)
    with pytest.raises(TrainingHalted, match="more than 20 times the median") as halted:
        trainer.train_step(samples)
    assert halted.value.sample_ids[0] == "c1"
    assert trainer.train_step(make_samples(4)).step == 9


def test_updates_whose_every_token_was_clipped_make_no_spike_of_the_next(tiny_llama: Path, make_samples: Make) -> None:
    samples = make_samples(4)
    unmoved = [
        dataclasses.replace(s, behaviour_logprobs=np.where(s.loss_mask, -50, 0), advantages=np.where(s.loss_mask, 1, 0))
        for s in samples
    ]
    trainer = Trainer(tiny_llama, TrainConfig(loss=PpoClip(), optimizer=SGD))
    for _ in range(8):
        assert trainer.train_step(unmoved).grad_norm == 0
    assert trainer.train_step(samples).grad_norm > 0
    assert len(trainer.guard.norms) == 1


def test_a_cap_that_never_binds_is_warned_of_only_with_several_updates(tiny_llama: Path, make_samples: Make) -> None:
    for updates, expected in ((1, 0), (2, 1)):
        trainer = Trainer(tiny_llama, TrainConfig(loss=Cispo(max_ratio=1e6), updates_per_batch=updates))
        with pytest.warns(LossWarning, match="clipped no token") if expected else no_warning():
            for seed in range(3):
                trainer.train_step(make_samples(4, seed=seed))


def no_warning() -> Any:
    import warnings

    caught = warnings.catch_warnings()
    warnings.simplefilter("error", LossWarning)
    return caught


def test_a_saved_policy_is_a_plain_folder_that_scores_the_same(
    tiny_llama: Path, make_samples: Make, tmp_path: Path
) -> None:
    trainer, _ = trained(tiny_llama, make_samples())
    folder = trainer.save_policy(tmp_path / "policy")
    assert (folder / "tokenizer_config.json").read_text() == '{"made_for": "a test"}\n'
    again = Trainer(folder, TrainConfig())
    for a, b in zip(trainer.logprobs(make_samples()), again.logprobs(make_samples()), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ModelError, match="never overwritten"):
        trainer.save_policy(tmp_path / "policy")


def test_contradictions_and_bad_batches_are_refused(tiny_llama: Path, make_samples: Make, tmp_path: Path) -> None:
    with pytest.raises(LossConfigError, match="corrected twice"):
        TrainConfig(mismatch=Tis())
    with pytest.raises(LossConfigError, match="fixed_length"):
        TrainConfig(loss=DrGrpo())
    with pytest.raises(LossConfigError, match="token_budget is 0"):
        TrainConfig(token_budget=0)
    with pytest.raises(ModelError, match=r"no config\.json"):
        Trainer(tmp_path, TrainConfig())
    trainer = Trainer(tiny_llama, TrainConfig())
    with pytest.raises(TrainError, match="skip the step"):
        trainer.train_step([])
    with pytest.raises(TrainError, match="at most 256"):
        trainer.train_step(make_samples(1, lengths=(300, 301)))
    (strange,) = make_samples(1)
    strange.token_ids[5] = 96
    for act in (trainer.train_step, trainer.logprobs):
        with pytest.raises(TrainError, match="holds token 96; the model has 96 tokens"):
            act([strange])


def test_a_broken_model_folder_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((tiny_llama / "config.json").read_text())
    (broken / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(ModelError, match="cannot be loaded"):
        Trainer(broken, TrainConfig())


def test_chain_weights_need_something_to_train_on() -> None:
    with pytest.raises(LossConfigError, match="nothing to learn from"):
        token_weights(
            [ChainShape(rollout_id="r", group_id="g", num_loss_tokens=0, weight=1.0)], Aggregation(name="token_mean")
        )
