"""What every strategy promises, and each baseline's own rule in literal numbers."""

from __future__ import annotations

import numpy as np
import pytest
from curriculum_fakes import group, iterate, pool, task

from training.curriculum.base import CurriculumError
from training.curriculum.dynamic_sampling import DynamicSampling
from training.curriculum.greso import Greso
from training.curriculum.mopps import Mopps
from training.curriculum.oracle import Oracle
from training.curriculum.pools import Pools
from training.curriculum.posterior import Posterior
from training.curriculum.prior import FeaturePrior
from training.curriculum.seventy_five import SeventyFive
from training.curriculum.strategies import STRATEGIES, build, settings_of

NAMES = sorted(STRATEGIES)
RATES = np.linspace(0.0, 1.0, 40).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_selection_depends_on_state_seed_and_version_alone(name: str) -> None:
    strategy, tasks = build(name), pool(40, num_kin=4)
    state = iterate(strategy, strategy.start(tasks), RATES, versions=range(3), groups=6)
    first = strategy.select(state, 6, policy_version=3, seed=1)
    assert strategy.select(state, 6, policy_version=3, seed=1) == first
    assert strategy.select(state, 6, policy_version=3, seed=2).decisions != first.decisions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 6, 90])
def test_a_selection_costs_no_more_than_it_may_and_names_tasks_of_the_pool(name: str, n: int) -> None:
    strategy, tasks = build(name), pool(40, num_kin=4)
    state = iterate(strategy, strategy.start(tasks), RATES, versions=range(3), groups=6)
    chosen = strategy.select(state, n, policy_version=3, seed=1)
    assert 0 < chosen.num_rollouts <= 8 * n
    digests = {t.task_id: t.digest for t in tasks.tasks}
    assert all(digests[d.task_id] == d.task_digest and d.why for d in chosen.decisions)
    assert all(0 <= d.low <= d.mean <= d.high <= 1 for d in chosen.decisions)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_explains_a_task_seen_and_one_unseen_and_refuses_one_unknown(name: str) -> None:
    strategy = build(name)
    state = strategy.fold(strategy.start(pool(2)), group(task(0), 3, 8))
    seen = strategy.explain(state, "t0", policy_version=1)
    assert seen[0].startswith("t0: ")
    assert any("3 of 8" in line for line in seen)
    assert any("none" in line for line in strategy.explain(state, "t1", policy_version=1))
    with pytest.raises(CurriculumError, match="'t9' is not in the pool of 2 tasks"):
        strategy.explain(state, "t9", policy_version=1)


@pytest.mark.parametrize("name", NAMES)
def test_requests_that_make_no_sense_are_refused(name: str) -> None:
    strategy = build(name)
    state = strategy.fold(strategy.start(pool(2)), group(task(0), 3, 8, version=5))
    with pytest.raises(CurriculumError, match="asked for 0 groups"):
        strategy.select(state, 0, policy_version=5, seed=0)
    with pytest.raises(CurriculumError, match="policy version 4, but evidence of version 5 is folded"):
        strategy.select(state, 1, policy_version=4, seed=0)
    with pytest.raises(CurriculumError, match="group_size is 1; want at least 2"):
        build(name, group_size=1)


def test_unknown_strategies_and_settings_are_refused_by_name() -> None:
    with pytest.raises(CurriculumError, match="no curriculum strategy 'orakel'; choose one of dynamic_sampling"):
        build("orakel")
    with pytest.raises(CurriculumError, match=r"'pools' has no setting \['discout'\]; it has"):
        build("pools", settings={"discout": 0.5})
    with pytest.raises(CurriculumError, match="want each above 0, or its tasks are never seen again"):
        build("pools", settings={"easy_weight": 0.0})


def test_a_strategys_own_settings_are_numbers_by_name_and_reach_its_parts() -> None:
    literal = build("seventy_five", settings={"every": 10.0, "low": 0.25})
    assert literal == SeventyFive(every=10, low=0.25)
    assert type(literal.every) is int
    assert settings_of(literal)["every"] == 10
    tuned = build("posterior", group_size=4, settings={"recheck_every": 5, "large_group": 8, "prior.memory": 0.9})
    assert tuned == Posterior(group_size=4, recheck_every=5, large_group=8, prior=FeaturePrior(memory=0.9))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"every": 2.5}, "every is 2.5; want a whole number"),
        ({"every": 0}, "every is 0; want at least 1 policy version"),
        ({"group_size": 4}, r"no setting \['group_size'\]; it has every, high, low, max_refills, probe_size"),
        ({"prior.memory": 0.9}, r"no setting \['prior.memory'\]"),
    ],
)
def test_a_setting_of_no_meaning_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(CurriculumError, match=said):
        build("seventy_five", settings=settings)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_every_strategy_can_be_set_to_what_it_is(name: str) -> None:
    strategy = build(name)
    settings = {key: value for key, value in settings_of(strategy).items() if value is not None}
    assert build(name, settings=settings) == strategy


def test_with_the_prior_switched_off_every_task_stands_alone() -> None:
    alone, kin = build("posterior", settings={"prior.learns": False}), build("posterior")
    evidence = [e for i in range(6) for e in group(task(i), 8, 8)]
    for strategy, shared in ((alone, False), (kin, True)):
        state = strategy.fold(strategy.start(pool(8)), evidence)
        seen, unseen = strategy.beliefs(state, 1).mean_N[[0, 7]]
        assert seen > 0.8
        assert bool(unseen > 0.6) is shared
        assert bool(unseen == 0.5) is not shared


def test_the_literal_rule_probes_all_then_trains_on_the_band_and_probes_again_every_k() -> None:
    strategy = SeventyFive(every=3)
    state = strategy.start(pool(9))
    probe = strategy.probes(state, policy_version=0, seed=0)
    assert (probe.num_probe_rollouts, probe.num_rollouts) == (72, 72)
    assert not any(d.trains for d in probe.decisions)
    for k in range(9):
        state = strategy.fold(state, group(task(k), k, 8, kind="probe"))
    chosen = strategy.select(state, 40, policy_version=0, seed=0)
    assert {d.task_id for d in chosen.decisions} == {"t2", "t3", "t4", "t5"}
    assert dict(chosen.tally) == {"unprobed": 0, "hard": 2, "band": 4, "retired": 3}
    state = strategy.fold(state, group(task(2), 8, 8, version=2))
    assert not strategy.probes(state, policy_version=2, seed=0).decisions
    assert len(strategy.probes(state, policy_version=3, seed=0).decisions) == 9


def test_the_literal_rule_judges_by_the_newest_probe_alone() -> None:
    strategy = SeventyFive()
    state = strategy.fold(strategy.start(pool(1)), group(task(0), 8, 8, kind="probe"))
    state = strategy.fold(state, group(task(0), 0, 8))
    assert strategy.gate(state).tolist() == [3]
    state = strategy.fold(state, group(task(0), 4, 8, version=1, kind="probe"))
    assert strategy.gate(state).tolist() == [2]


def test_the_literal_rule_says_so_when_its_band_is_empty() -> None:
    strategy = SeventyFive()
    state = strategy.fold(
        strategy.start(pool(2)), group(task(0), 0, 8, kind="probe") + group(task(1), 8, 8, kind="probe")
    )
    chosen = strategy.select(state, 1, policy_version=0, seed=0)
    assert [d.task_id for d in chosen.decisions] == ["t0"]
    assert chosen.notes == ("no task is in the band; drawing from the hard ones",)


def test_dynamic_sampling_never_draws_again_what_this_version_has_visited() -> None:
    strategy = DynamicSampling()
    state = strategy.start(pool(10))
    for i in range(7):
        state = strategy.fold(state, group(task(i), 0, 8, version=2))
    again = strategy.select(state, 5, policy_version=2, seed=0)
    assert {d.task_id for d in again.decisions} == {"t7", "t8", "t9"}
    assert len(strategy.select(state, 5, policy_version=3, seed=0).decisions) == 5


def test_pools_draw_normal_tasks_five_times_as_often_as_hard_or_easy_ones() -> None:
    strategy = Pools()
    state = strategy.start(pool(3))
    for i, passes in enumerate([2, 6, 7]):
        state = strategy.fold(state, group(task(i), passes, 8))
    assert strategy.pool_of(state).tolist() == [0, 1, 2]
    drawn = [strategy.select(state, 1, policy_version=0, seed=s).decisions[0].task_id for s in range(1400)]
    shares = [drawn.count(f"t{i}") / 1400 for i in range(3)]
    assert shares == pytest.approx([1 / 7, 5 / 7, 1 / 7], abs=0.035)


def test_greso_skips_by_the_streak_and_never_below_its_floor() -> None:
    strategy = Greso(step_p=0.0)
    state = strategy.start(pool(3))
    for version in range(10):
        evidence = group(task(0), 0, 8, version=version) if version >= 8 else []
        state = strategy.fold(state, evidence + group(task(1), 8, 8, version=version))
    state = strategy.fold(state, group(task(2), 5, 8, version=10))
    assert strategy.visit_probability(state).tolist() == [0.25, 0.01, 1.0]


def test_greso_steers_each_probability_towards_its_part_of_the_target_within_bounds() -> None:
    strategy = Greso()
    state = strategy.start(pool(1))
    for version in range(60):
        state = strategy.fold(state, group(task(0), 0, 8, version=version))
        if version == 0:
            assert dict(state.scalars) == {"p_easy": 0.51, "p_hard": 0.49}
    assert dict(state.scalars) == pytest.approx({"p_easy": 0.95, "p_hard": 0.05})


def test_mopps_fades_at_each_visit_towards_its_prior() -> None:
    strategy = Mopps(discount=0.5)
    state = strategy.fold(strategy.start(pool(1)), group(task(0), 6, 8))
    state = strategy.fold(state, group(task(0), 1, 8, version=7))
    beliefs = strategy.beliefs(state, 9)
    assert (beliefs.alpha_N[0], beliefs.beta_N[0]) == (1 + 0.5 * 6 + 1, 1 + 0.5 * 2 + 7)


def test_mopps_keeps_its_posterior_when_a_group_has_one_rollout() -> None:
    strategy = Mopps(discount=0.5)
    state = strategy.fold(strategy.start(pool(1)), group(task(0), 8, 8))
    state = strategy.fold(state, group(task(0), 0, 1, version=1))
    beliefs = strategy.beliefs(state, 1)
    assert (beliefs.alpha_N[0], beliefs.beta_N[0]) == (5.0, 2.0)


def test_the_oracle_takes_the_tasks_of_highest_signal() -> None:
    truth = np.array([0.02, 0.5, 0.97, 0.4, 0.6, 0.0])
    strategy = Oracle(truth=lambda: truth)
    chosen = strategy.select(strategy.start(pool(6)), 3, policy_version=0, seed=0)
    assert {d.task_id for d in chosen.decisions} == {"t1", "t3", "t4"}
