"""The training stage: the same policy wherever its step runs, and a step that must not be taken is on record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from fakes import make_tiny_folder
from tasks_fakes import a_group, a_task, desk_at, stored, verdicts_of

from environments.types import Chain, Group, Judged, Segment
from infra import records
from infra.digests import digest_folder
from infra.engines.base import Sampling
from infra.manifest import Manifest
from tasks.policies import Policy, adopt
from tasks.rollouts import GROUPS_FILE
from tasks.stage import Desk, Stage, Work, perform
from tasks.train import TrainSection, check_section, read_report, train, train_config
from training.guards import TrainingHalted
from training.losses.base import LossConfigError
from training.losses.m1_mask import M1Mask
from training.losses.mismatch import IcePop
from training.losses.names import LOSS_NAMES
from training.parity import ParityError

SAMPLING = Sampling(temperature=1.0, max_tokens=32, seed=0)
LOOSE = TrainSection(learning_rate=1e-3, max_engine_gap=100.0)  # these log-probabilities are no engine's


def chain(rollout_id: str, logprob: float) -> Chain:
    rng = np.random.default_rng([int(part) for part in rollout_id.removeprefix("g").split("-")])
    prompt, answer = (tuple(int(i) for i in rng.integers(0, 320, n)) for n in (12, 9))
    segments = (
        Segment(ids=prompt, logprobs=(), trainable=False, call_id="c0", policy_version=-1),
        Segment(ids=answer, logprobs=(logprob,) * 9, trainable=True, call_id="c0", policy_version=0),
    )
    return Chain(
        chain_id=f"{rollout_id}-chain", rollout_id=rollout_id, agent_id="main", role="main", parent_chain_id=None,
        fork_cause="root", segments=segments,
    )  # fmt: skip


def stored_groups(desk: Desk, *groups: Group) -> Manifest:
    """The artifact of a rollout stage."""

    def make(out: Path, scratch: Path) -> int:
        out.mkdir()
        return records.write_parquet(groups, out / GROUPS_FILE, cls=Group)

    stage, schema = Stage(name="given_rollouts", version=1, kind="rollouts"), records.schema_version(Group)
    return perform(desk, Work(stage=stage, parents=(), section=groups, make=make, schema_version=schema))


def given_group(group_id: str, size: int, logprob: float = -6.0) -> Group:
    bare = a_group(group_id, a_task("t0"), size)
    members = tuple(dataclasses.replace(m, chains=(chain(m.rollout_id, logprob),)) for m in bare.members)
    return dataclasses.replace(bare, members=members)


def inputs(desk: Desk, folder: Path, passed: tuple[bool, ...], logprob: float) -> tuple[Policy, Manifest, Manifest]:
    """A policy, one group of rollouts and its verdicts, in the store."""
    group = given_group("g0", len(passed), logprob)
    policy = Policy(manifest=perform(desk, adopt(folder, digest=None)), version=0)
    return policy, stored_groups(desk, group), stored(desk, Judged, verdicts_of(group, *passed), "judged")


def trained(desk: Desk, given: tuple[Policy, Manifest, Manifest], section: TrainSection) -> Policy:
    policy, rollouts, judged = given
    work = train(desk, policy, [(rollouts, judged)], start=policy, section=section, sampling=SAMPLING, iteration=0)
    return Policy(manifest=perform(desk, work), version=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("policy") / "tiny")


@pytest.mark.timeout(900)  # starts interpreters, which takes minutes on a crowded machine
def test_a_process_of_its_own_makes_the_very_policy_of_a_step_in_this_one(folder, tmp_path):
    desk = desk_at(tmp_path)
    given = inputs(desk, folder, (True, False, True, False), -6.0)
    here = trained(desk, given, LOOSE)
    there = trained(desk, given, dataclasses.replace(LOOSE, processes=1))
    assert digest_folder(there.folder(desk)) == digest_folder(here.folder(desk))
    assert digest_folder(here.folder(desk)) != digest_folder(folder)
    reports = [read_report(desk, policy) for policy in (here, there)]
    assert reports[0]["updates"] == reports[1]["updates"]
    assert reports[1]["engine_gap_max"] > 0
    assert not list(desk.work.glob("*"))


def test_a_damaged_trainer_state_is_set_aside_and_its_step_taken_anew_from_the_last_good_one(folder, tmp_path, caplog):
    desk = desk_at(tmp_path)
    policy, rollouts, judged = inputs(desk, folder, (True, False, True, False), -6.0)
    first = trained(desk, (policy, rollouts, judged), LOOSE)
    second = train(desk, first, [(rollouts, judged)], start=policy, section=LOOSE, sampling=SAMPLING, iteration=1)
    made = perform(desk, second)
    weights = digest_folder(desk.store.path(made) / "policy")
    state = desk.store.path(made) / "checkpoint" / "optimizer.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    again = perform(desk, second)
    assert "moved to" in caplog.text
    assert "the stage will be done again" in caplog.text
    assert digest_folder(desk.store.path(again) / "policy") == weights
    assert [p.name for p in (tmp_path / "store" / "quarantine").glob("*/*") if p.is_dir()] == [f"{made.sha256}.policy"]
    assert desk.store.path(first.manifest).is_dir()


def test_a_batch_without_a_lesson_leaves_the_weights_as_they_are(folder, tmp_path):
    desk = desk_at(tmp_path)
    policy = trained(desk, inputs(desk, folder, (True, True, True), -6.0), LOOSE)
    assert digest_folder(policy.folder(desk)) == digest_folder(folder)
    report = read_report(desk, policy)
    assert report["skipped"] == "no group with a difference in it"
    assert report["groups"]["zero_variance"] == ["g0"]
    assert any("nothing to learn from" in line for line in desk.progress.lines)


def test_no_group_is_left_out_in_silence(folder, tmp_path):
    desk = desk_at(tmp_path)
    whole = [given_group(f"g{n}", 4) for n in range(5)]
    groups = [
        whole[0],  # complete
        dataclasses.replace(whole[1], members=whole[1].members[:3]),  # one refill too few, and still used
        dataclasses.replace(whole[2], members=whole[2].members[:1]),
        dataclasses.replace(whole[3], members=()),
        whole[4],  # two of its members cannot be judged
    ]
    passed = [(True, False, True, False), (True, False, False), (True,), (), (None, True, None, False)]
    verdicts = [v for group, won in zip(groups, passed, strict=True) for v in verdicts_of(group, *won)]
    policy = Policy(manifest=perform(desk, adopt(folder, digest=None)), version=0)
    rollouts, judged = stored_groups(desk, *groups), stored(desk, Judged, verdicts, "judged")
    report = read_report(desk, trained(desk, (policy, rollouts, judged), LOOSE))
    assert report["groups"] == {
        "incomplete": ["g1", "g4"],
        "too_small": ["g2", "g3"],
        "unjudged": ["g4-0", "g4-2"],
        "zero_variance": [],
    }
    assert report["num_rollouts"] == 4 + 3 + 2


def test_an_engine_that_sampled_from_another_model_is_refused_before_it_trains(folder, tmp_path):
    desk = desk_at(tmp_path)
    with pytest.raises(ParityError, match=r"differ by up to .* at most 0\.05 is allowed"):
        trained(desk, inputs(desk, folder, (True, False), -0.01), TrainSection())


def test_a_halted_step_names_its_samples_in_a_file_that_stays(folder, tmp_path):
    desk = desk_at(tmp_path)
    given = inputs(desk, folder, (True, False), -6.0)
    with pytest.raises(TrainingHalted, match="not finite"):
        trained(desk, given, dataclasses.replace(LOOSE, learning_rate=1e30, updates_per_batch=2))
    [halted] = desk.work.glob("*/halted.json")
    assert json.loads(halted.read_text())["sample_ids"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"processes": -1}, "training.processes is -1; want 0"),
        ({"timeout_s": 0.0}, "want positive seconds"),
        ({"loss": "grop"}, "training.loss is 'grop'; want one of cispo"),
        ({"loss": "nll"}, "it would imitate failed rollouts as well; choose another loss, or imitate demonstrations"),
        ({"rare_words": ("wait", "Oh no")}, "rare_words holds 'Oh no'; want lower-case ASCII words"),
        ({"loss": "dr_grpo"}, "advantage_scale 'std_population': dividing by a std is what Dr. GRPO leaves out"),
    ],
)
def test_contradictions_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        TrainSection(**settings)


def test_how_long_a_step_may_take_decides_nothing():
    assert TrainSection(timeout_s=5.0).deciding == TrainSection(silence_s=7.0).deciding
    assert TrainSection(processes=2).deciding != TrainSection().deciding


def test_every_setting_reaches_the_trainer():
    section = TrainSection(
        loss="m1_mask",
        loss_settings=(("clip_low", 0.1), ("clip_high", 0.3), ("max_ratio", 4.0)),
        optimizer="m1",
        adam_beta2=0.99,
        decay_updates=40,
        spike_factor=7.0,
        rare_words=("wait",),
        precision="bfloat16",
        gradient_checkpointing=True,
        lora_rank=4,
        lora_alpha=8.0,
        ratio_base="proximal",
        mismatch="icepop",
        mismatch_settings=(("low", 0.25),),
    )
    config = train_config(section, Path("start"), 5)
    assert config.loss == M1Mask(clip_low=0.1, clip_high=0.3, max_ratio=4.0)
    assert (config.mismatch, config.ratio_base) == (IcePop(low=0.25, high=5.0), "proximal")
    assert (config.optimizer.beta1, config.optimizer.beta2, config.optimizer.eps) == (0.9, 0.99, 1e-15)
    assert (config.optimizer.decay_updates, config.spike_factor) == (40, 7.0)
    assert (config.precision, config.gradient_checkpointing, config.seed) == ("bfloat16", True, 5)
    assert (config.rare_words, config.start_folder) == (("wait",), Path("start"))
    assert config.lora is not None
    assert (config.lora.rank, config.lora.alpha) == (4, 8.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"precision": "float16"}, "precision is 'float16'; want one of float32, bfloat16"),
        ({"loss": "dr_grpo", "advantage_scale": "none"}, "dr_grpo with aggregation token_mean is GRPO under another"),
        ({"aggregation": "token_sum"}, "aggregation is 'token_sum'; want one of token_mean, rollout_mean"),
        ({"mismatch": "tis"}, "would be corrected twice"),
        ({"loss": "grpoo"}, "training.loss is 'grpoo'; want one of cispo"),
        ({"loss": "cispo_two_sided"}, "needs the setting min_ratio, max_ratio; it takes min_ratio, max_ratio"),
        ({"loss_settings": (("eps_high", 0.2),)}, r"loss cispo has no setting eps_high; it takes max_ratio=5\.0"),
        ({"loss_settings": (("max_ratio", 0.2),)}, r"write max_ratio=1\.2"),
        ({"loss": "reinforce", "loss_settings": (("clip_low", 0.2),)}, "no setting clip_low; it takes none"),
        (
            {"mismatch": "tis", "ratio_base": "proximal", "mismatch_settings": (("high", 2.0),)},
            r"mismatch correction tis has no setting high; it takes cap=2\.0",
        ),
        ({"learning_rate": float("inf")}, r"optimizer\.learning_rate is inf; want a positive, finite number"),
        ({"adam_beta1": 1.0}, r"optimizer\.beta1 is 1\.0; want a number in \[0, 1\)"),
        ({"decay_updates": 3, "warmup_updates": 4}, "decay_updates 3 ends within warmup_updates 4"),
    ],
)
def test_what_only_the_trainer_can_refuse_is_refused_before_a_rollout(settings, said):
    with pytest.raises(ValueError, match=said):
        check_section(TrainSection(**settings))


SETTINGS = {
    "cispo": {"max_ratio": 4.0},
    "cispo_two_sided": {"min_ratio": 0.8, "max_ratio": 3.0},
    "dapo": {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3.0},
    "dispo": {"correct_min": 0.5, "correct_max": 4.0, "incorrect_min": 0.5, "incorrect_max": 2.0},
    "dr_grpo": {"clip_low": 0.1, "clip_high": 0.3},
    "grpo": {"clip_low": 0.1, "clip_high": 0.3, "kl_beta": 0.1},
    "gspo": {"clip_low": 1e-4, "clip_high": 2e-4},
    "m1_mask": {"clip_low": 0.1, "clip_high": 0.3, "max_ratio": 3.0},
    "ppo_clip": {"clip_low": 0.1, "clip_high": 0.3},
    "reinforce": {},
}


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_each_loss_is_made_from_settings_or_refused_as_a_config_error(name):
    own = {"aggregation": "fixed_length", "fixed_length": 50, "advantage_scale": "none"}
    fixed = own if name == "dr_grpo" else {}
    if name == "nll":
        with pytest.raises(ValueError, match="warm-start"):
            TrainSection(loss=name)
        return
    loss = train_config(
        TrainSection(loss=name, loss_settings=tuple(SETTINGS[name].items()), **fixed), Path("start"), 0
    ).loss
    assert {field: getattr(loss, field) for field in SETTINGS[name]} == SETTINGS[name]
    assert set(SETTINGS[name]) == {f.name for f in dataclasses.fields(loss)}
    with pytest.raises(LossConfigError, match=f"loss {name} has no setting nonsense"):
        check_section(TrainSection(loss=name, loss_settings=(("nonsense", 1.0),), **fixed))


def test_a_loss_with_a_kl_term_is_given_the_first_policy_and_monitoring_can_be_switched_off():
    kl = TrainSection(loss="grpo", loss_settings=(("kl_beta", 0.1),), kl_to_start=False)
    assert train_config(kl, Path("start"), 0).start_folder == Path("start")
    assert train_config(TrainSection(kl_to_start=False), Path("start"), 0).start_folder is None
    assert train_config(TrainSection(), Path("start"), 0).start_folder == Path("start")
