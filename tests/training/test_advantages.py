"""Advantages against the published table for groups of eight."""

from __future__ import annotations

import numpy as np
import pytest

from training.advantages import (
    AdvantageConfig,
    AdvantageError,
    Baseline,
    GroupRewards,
    Scale,
    batch_advantages,
)


def group(rewards: list[float], name: str = "g", requested: int | None = None) -> GroupRewards:
    return GroupRewards(
        group_id=name,
        rollout_ids=tuple(f"{name}{i}" for i in range(len(rewards))),
        rewards_G=tuple(rewards),
        requested_size=requested or len(rewards),
    )


def config(baseline: Baseline = "group_mean", scale: Scale = "std_population") -> AdvantageConfig:
    return AdvantageConfig(baseline=baseline, scale=scale)


@pytest.mark.parametrize(
    ("successes", "scaled", "left_out"),
    [
        (1, (2.6458, -0.3780), (1.0, -0.1429)),
        (2, (1.7321, -0.5774), (0.8571, -0.2857)),
        (4, (1.0, -1.0), (0.5714, -0.5714)),
        (6, (0.5774, -1.7321), (0.2857, -0.8571)),
    ],
)
def test_the_table_for_groups_of_eight(
    successes: int, scaled: tuple[float, float], left_out: tuple[float, float]
) -> None:
    eight = group([1.0] * successes + [0.0] * (8 - successes))
    for chosen, expected in ((config(), scaled), (config("leave_one_out", "none"), left_out)):
        values = batch_advantages([eight], chosen).by_rollout
        assert values["g0"] == pytest.approx(expected[0], abs=5e-5)
        assert values["g7"] == pytest.approx(expected[1], abs=5e-5)


def test_the_sample_std_is_smaller_by_the_square_root_of_seven_eighths() -> None:
    eight = group([1.0, 0, 0, 0, 0, 0, 0, 0])
    population = batch_advantages([eight], config()).by_rollout["g0"]
    sample = batch_advantages([eight], config(scale="std_sample")).by_rollout["g0"]
    assert sample / population == pytest.approx(0.93541, abs=1e-5)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_a_group_that_all_did_the_same_is_dropped_and_named(reward: float) -> None:
    batch = batch_advantages([group([reward] * 8, "same"), group([1, 0], "mixed")], config())
    assert batch.zero_variance == ("same",)
    assert batch.by_rollout == {"mixed0": 1.0, "mixed1": -1.0}


def test_a_group_with_missing_members_is_compared_among_those_present() -> None:
    batch = batch_advantages([group([1, 0, 0], "part", requested=8), group([1], "lone", requested=8)], config())
    assert batch.incomplete == ("part",)
    assert batch.too_small == ("lone",)
    assert batch.by_rollout["part0"] == pytest.approx(2**0.5)
    assert batch.by_rollout["part1"] == pytest.approx(-(2**-0.5))


def test_leave_one_out_stays_unbiased_when_members_are_missing_at_random() -> None:
    """The expected advantage of a success does not depend on how many siblings happened to be there."""
    rng = np.random.default_rng(0)
    means = []
    for size in (8, 3):
        draws = (rng.random((40_000, size)) < 0.3).astype(float)
        draws[:, 0] = 1.0
        means.append(float((draws[:, 0] - draws[:, 1:].mean(1)).mean()))
        first = batch_advantages([group([1.0, *draws[0, 1:]])], config("leave_one_out", "none"))
        assert first.by_rollout.get("g0", 0.0) == pytest.approx(1.0 - draws[0, 1:].mean())
    assert means == pytest.approx([0.7, 0.7], abs=0.01)


def test_batch_std_divides_all_groups_by_one_number() -> None:
    batch = batch_advantages([group([1, 0], "a"), group([1, 0, 0, 0], "b")], config(scale="batch_std"))
    scale = float(np.std([0.5, -0.5, 0.75, -0.25, -0.25, -0.25]))
    assert batch.by_rollout["a0"] == pytest.approx(0.5 / scale)
    assert batch.by_rollout["b1"] == pytest.approx(-0.25 / scale)


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(AdvantageError, match="leave_one_out"):
        AdvantageConfig(baseline="leave_one_out", scale="std_population")
    with pytest.raises(AdvantageError, match="not all finite"):
        group([1.0, float("nan")])
    assert batch_advantages([], config(scale="batch_std")).by_rollout == {}
