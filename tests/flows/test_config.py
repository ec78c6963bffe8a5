"""Settings: presets build, files and flags lie over them, and what does not fit is refused in the user's words."""

from __future__ import annotations

import json
import operator

import pytest

from flows.overrides import ConfigError, with_file, with_flags
from flows.presets import PRESETS, preset
from infra import records
from tasks.train import check_section
from training.curriculum.posterior import Posterior
from training.curriculum.prior import FeaturePrior
from training.curriculum.seventy_five import SeventyFive


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_builds_and_reads_back_equal(name):
    config = preset(name)
    assert records.from_json(type(config), records.to_json(config)) == config
    assert config.strategy().group_size == config.curriculum.group_size


def test_a_flag_replaces_one_setting_and_nothing_else():
    config = with_flags(preset("tiny"), ("training.learning_rate=1e-3", "iterations=3"))
    assert config.training.learning_rate == 0.001
    assert config.iterations == 3
    assert config.pool == preset("tiny").pool


def test_a_file_lies_over_the_preset_and_a_flag_over_the_file(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("iterations: 4\ncurriculum:\n  group_size: 4\n")
    config = with_flags(with_file(preset("tiny"), path), ("iterations=5",))
    assert (config.iterations, config.curriculum.group_size) == (5, 4)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("training.learning_rat=1", "did you mean 'learning_rate'?"),
        ("nothing.at=1", "'nothing' is unknown"),
        ("training=1", "is a section"),
        ("iterations.more=1", "is a value and has no fields"),
        ("iterations", "want section.field=value"),
        ("iterations=many", "iterations is 'many'"),
        ("iterations=0", "want at least 1"),
        ("training.loss=grpo", None),
        ("training.loss=grop", "training.loss is 'grop'; want one of cispo"),
        ("training.advantage_scale=std", "want one of none, std_population, std_sample, batch_std"),
        ("training.advantage_baseline=mean", "want one of group_mean, leave_one_out"),
        ("training.advantage_baseline=leave_one_out", "use scale 'none' or 'batch_std'"),
        ("rollouts.harness=none", "want one of"),
        ("rollouts.temperature=0", "greedy rollouts of one task are all the same"),
        ("curriculum.tasks_per_iteration=100000", "lower the one or raise pool.train_tasks"),
        ("pool.max_horizon=2", "are empty"),
        ("engine.kind=vllm", "needs a url"),
        ("seed=-1", "seed is -1; want 0 or more"),
        ("engine.rows=0", "engine.rows is 0; want at least 1"),
        ("engine.threads=0", "engine.threads is 0; want at least 1"),
        ("rollouts.concurrency=0", "rollouts.concurrency is 0; want at least 1"),
        ("rollouts.max_tokens=0", "rollouts.max_tokens is 0; want at least 1"),
        ("rollouts.max_refills=-1", "rollouts.max_refills is -1; want at least 0"),
        ("rollouts.command_timeout_s=0", "rollouts.command_timeout_s is 0.0; want positive seconds"),
        ("benchmark.temperature=-1", "benchmark.temperature is -1.0; want a number in [0, 10]"),
        ("benchmark.confidence=95", "benchmark.confidence is 95.0; want a share between 0 and 1"),
        ("training.learning_rate=.nan", "training.learning_rate is nan; want finite numbers"),
        ("training.loss_settings={max_ratio: .inf}", "want finite numbers"),
        ("training.loss_settings={max_ratio: 3", "training.loss_settings: '{max_ratio: 3' is not readable as YAML"),
        ("benchmark.bands=[3]", "add a last band of 12"),
        ("tracking.traces=99", "want 0 to 10"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_with_the_mend(flag, said):
    if said is None:
        assert with_flags(preset("tiny"), (flag,)).training.loss == "grpo"
        return
    with pytest.raises(ConfigError) as caught:
        with_flags(preset("tiny"), (flag,))
    assert said in str(caught.value)


def test_a_strategys_own_settings_are_a_mapping_in_flags_and_files(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("curriculum:\n  settings:\n    every: 10\n  strategy: seventy_five\n")
    by_file = with_file(preset("tiny"), path)
    flags = ('curriculum.settings={"every": 10}', "curriculum.strategy=seventy_five")
    by_flags = with_flags(preset("tiny"), flags)
    assert by_file.strategy() == by_flags.strategy() == SeventyFive(every=10)
    assert by_file.run_id == by_flags.run_id != preset("tiny").run_id
    assert records.from_json(type(by_file), records.to_json(by_file)) == by_file
    off = with_flags(preset("tiny"), ("curriculum.settings={prior.learns: false, retire_when: 0.95}",))
    assert off.strategy() == Posterior(retire_when=0.95, prior=FeaturePrior(learns=False))
    turned = with_flags(preset("tiny"), ("curriculum.settings={retire_when: 0.95, prior.learns: false}",))
    assert off.run_id == turned.run_id


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("curriculum.settings={every: 10}",), "strategy 'posterior' has no setting ['every']; it has exploration,"),
        (("curriculum.strategy=uniform", "curriculum.settings={every: 10}"), "has no setting ['every']; it has max"),
        (("curriculum.settings={retire_when: often}",), "curriculum.settings is {'retire_when': 'often'}"),
        (("curriculum.settings=10",), "curriculum.settings is 10"),
        (("curriculum.settings={retire_when: 2}",), "the gap between them is the hysteresis"),
    ],
)
def test_a_setting_that_the_strategy_does_not_have_is_refused_with_those_it_has(flags, said):
    with pytest.raises(ConfigError) as caught:
        with_flags(preset("tiny"), flags)
    assert said in str(caught.value)


def test_the_curriculum_weighs_tasks_by_the_advantage_that_the_trainer_uses():
    assert preset("tiny").strategy().advantage == "std"
    for scale, mode in (("std_sample", "std"), ("none", "mean"), ("batch_std", "mean")):
        assert with_flags(preset("tiny"), (f"training.advantage_scale={scale}",)).strategy().advantage == mode
    centred = ("training.advantage_scale=none", "training.advantage_baseline=leave_one_out")
    assert with_flags(preset("tiny"), centred).strategy().advantage == "mean"


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        with_file(preset("tiny"), tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [")
    with pytest.raises(ConfigError, match="not readable as YAML"):
        with_file(preset("tiny"), broken)


def test_the_same_settings_are_the_same_run_and_other_settings_another():
    assert preset("tiny").run_id == preset("tiny").run_id
    assert with_flags(preset("tiny"), ("seed=1",)).run_id != preset("tiny").run_id


@pytest.mark.parametrize(
    "settings",
    [
        {"pool.train_tasks": 8, "curriculum.tasks_per_iteration": 4},
        {"engine.kind": "vllm", "engine.url": "http://127.0.0.1:8000"},  # neither fits without the other
    ],
)
def test_settings_that_only_fit_together_may_come_in_any_order(tmp_path, settings):
    path = tmp_path / "my.yaml"
    for order in (list(settings.items()), list(settings.items())[::-1]):
        flags = tuple(f"{dotted}={value}" for dotted, value in order)
        nested = {}
        for dotted, value in order:
            section, field = dotted.split(".")
            nested.setdefault(section, {})[field] = value
        path.write_text(json.dumps(nested))
        for config in (with_flags(preset("tiny"), flags), with_file(preset("tiny"), path)):
            for dotted, value in settings.items():
                assert operator.attrgetter(dotted)(config) == value


def test_what_a_loss_takes_is_set_by_name_in_any_order_and_saved(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("training:\n  loss_settings: {min_ratio: 0.5, max_ratio: 3}\n  loss: cispo_two_sided\n")
    config = with_file(preset("tiny"), path)
    assert config.training.loss_settings == (("max_ratio", 3.0), ("min_ratio", 0.5))
    check_section(config.training)
    saved = records.from_json(type(config), records.to_json(config))
    assert saved == config
    assert saved.run_id == config.run_id
    with pytest.raises(ConfigError, match="Input should be a valid number"):
        with_flags(preset("tiny"), ("training.loss_settings={max_ratio: wide}",))
    with pytest.raises(ConfigError, match="Input should be 'default' or 'm1'"):
        with_flags(preset("tiny"), ("training.optimizer=m2",))


def test_an_aggregation_that_wants_a_length_says_which_setting_gives_it():
    config = with_flags(preset("tiny"), ("training.aggregation=fixed_length",))
    with pytest.raises(ValueError, match="give that one training"):
        check_section(config.training)
