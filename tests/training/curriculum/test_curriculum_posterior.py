"""The default strategy: soft retirement, memory that fades and drifts, rare looks, honest predictions."""

from __future__ import annotations

import numpy as np
import pytest
from curriculum_fakes import group, iterate, pool, task

from training.curriculum.arena import play
from training.curriculum.base import CurriculumError
from training.curriculum.calibration import predict, reliability
from training.curriculum.ledger import State
from training.curriculum.mopps import Mopps
from training.curriculum.posterior import WORDS, Posterior
from training.curriculum.prior import FeaturePrior
from training.curriculum.signal import probability_at_least
from training.curriculum.simulator import make_world


def visited(strategy: Posterior, passes: list[int], size: int = 8, *, tasks: int = 1) -> State:
    """Task t0 visited once a version with these passes."""
    state = strategy.start(pool(tasks))
    for version, k in enumerate(passes):
        state = strategy.fold(state, group(task(0), k, size, version=version))
    return state


def word(strategy: Posterior, state: State, row: int = 0) -> str:
    return WORDS[strategy.words(state, strategy.beliefs(state, state.version))[row]]


def test_one_lucky_batch_that_the_literal_rule_drops_does_not_retire_a_task() -> None:
    strategy = Posterior()
    assert word(strategy, visited(strategy, [6])) != "retired"
    assert word(strategy, visited(strategy, [4, 6])) != "retired"


def test_a_task_solved_again_and_again_retires_and_says_since_when() -> None:
    strategy = Posterior()
    state = visited(strategy, [8, 8, 8])
    assert word(strategy, state) == "retired"
    assert strategy.explain(state, "t0", policy_version=3)[0].startswith("t0: retired since version ")


def test_between_the_two_thresholds_a_mark_stays_what_it_was() -> None:
    strategy = Posterior(retire_when=0.9, readmit_when=0.5)
    rising = visited(strategy, [5, 7])
    falling = strategy.fold(visited(strategy, [8, 8]), group(task(0), 4, 8, version=2))
    for state, mark in ((rising, 0), (falling, 1)):
        c = state.columns
        chance = float(probability_at_least(c.passes, c.fails, 0.75)[0])
        assert (0.0 if mark == 0 else 0.5) <= chance <= 0.9
        assert c.retired.tolist() == [mark]


def test_a_forgotten_task_comes_back_when_it_is_looked_at_again() -> None:
    strategy = Posterior()
    state = visited(strategy, [8, 8, 8])
    assert state.columns.retired.tolist() == [1]
    state = strategy.fold(state, group(task(0), 1, 4, version=23, kind="probe"))
    assert state.columns.retired.tolist() == [0]
    assert state.columns.changed_at.tolist() == [23]


def test_time_alone_changes_no_mark() -> None:
    strategy = Posterior()
    state = visited(strategy, [8, 8, 8], tasks=2)
    state = strategy.fold(state, group(task(1), 4, 8, version=60))
    assert state.columns.retired.tolist() == [1, 0]


def test_retired_tasks_are_looked_at_again_on_schedule_before_others_are_probed() -> None:
    strategy = Posterior(probe_share=0.5, hard_share=0.0, recheck_every=20)
    state = visited(strategy, [8, 8, 8], tasks=6)
    state = strategy.fold(state, [e for i in range(1, 6) for e in group(task(i), 4, 8, version=2)])

    def rechecked(version: int) -> bool:
        chosen = strategy.select(state, 2, policy_version=version, seed=3)
        return any(d.task_id == "t0" and d.kind == "probe" and d.state == "retired" for d in chosen.decisions)

    assert not rechecked(21)
    assert rechecked(22)


def test_while_tasks_were_never_seen_one_look_in_four_is_a_recheck() -> None:
    strategy = Posterior(probe_share=0.5, hard_share=0.0)
    state = strategy.start(pool(80, num_kin=8))
    for version in range(3):
        state = strategy.fold(state, [e for i in range(40) for e in group(task(i, kin=i % 8), 8, 8, version=version)])
    chosen = [strategy.select(state, 8, policy_version=30, seed=s) for s in range(50)]
    looks = [d.state for selection in chosen for d in selection.decisions if d.kind == "probe"]
    assert len(looks) == pytest.approx(400, rel=0.1)
    assert looks.count("retired") / len(looks) == pytest.approx(0.25, abs=0.05)


def test_retired_tasks_are_seldom_trained_on_while_others_teach_more() -> None:
    strategy = Posterior(probe_share=0.0, hard_share=0.0)
    state = strategy.start(pool(8))
    for i in range(8):
        for version in range(3):
            state = strategy.fold(state, group(task(i), 8 if i < 4 else 4, 8, version=version))
    chosen = [strategy.select(state, 4, policy_version=3, seed=s) for s in range(20)]
    assert {d.task_id for selection in chosen for d in selection.decisions} == {"t4", "t5", "t6", "t7"}


@pytest.mark.parametrize(("repeat_cost", "tasks_met"), [(0.0, 4), (0.7, 12)])
def test_a_cost_of_repeating_spreads_lessons_over_more_tasks(repeat_cost: float, tasks_met: int) -> None:
    strategy = Posterior(repeat_cost=repeat_cost, probe_share=0.0, exploration=0.0, prior=FeaturePrior(learns=False))
    state, met = strategy.start(pool(12)), set()
    for version in range(12):  # tasks 0 to 3 pass half the time and the others seldom, so those teach more
        chosen = strategy.select(state, 4, policy_version=version, seed=0).decisions
        met |= {d.task_id for d in chosen if version >= 6}
        for d in chosen:
            row = int(d.task_id[1:])
            state = strategy.fold(state, group(task(row), 4 if row < 4 else 1, d.group_size, version=version))
    assert len(met) == tasks_met


def test_tasks_that_always_fail_stay_alive_at_a_small_share_with_larger_groups() -> None:
    strategy = Posterior(probe_share=0.0, hard_share=0.05)
    state = strategy.start(pool(40))
    for version in range(3):
        for i in range(40):
            state = strategy.fold(state, group(task(i), 0 if i < 10 else 4, 8, version=version))
    spent = kept = 0
    for seed in range(60):
        chosen = strategy.select(state, 16, policy_version=3, seed=seed)
        hard = [d for d in chosen.decisions if d.state == "hard" and "kept alive" in d.why]
        assert all(d.group_size == 16 and int(d.task_id[1:]) < 10 for d in hard)
        spent += chosen.num_rollouts
        kept += sum(d.group_size for d in hard)
    assert kept / spent == pytest.approx(0.05, abs=0.02)


def test_group_sizes_follow_the_signal_and_the_signal_follows_the_advantage() -> None:
    def sizes(strategy: Posterior) -> dict[str, int]:
        state = strategy.start(pool(2))
        for version in range(6):
            for i, passes in enumerate([int(version % 2 == 0), 2]):
                state = strategy.fold(state, group(task(i), passes, 8, version=version))
        chosen = strategy.select(state, 3, policy_version=6, seed=0)
        return {d.task_id: d.group_size for d in chosen.decisions}

    # 1 of 16 passes, 1 of 4: twice the rollouts catch 1.5 and 1.1 times the signal each; only the first is worth it.
    plain = {"probe_share": 0.0, "hard_share": 0.0}
    assert sizes(Posterior(advantage="std", **plain)) == {"t0": 16, "t1": 8}  # type: ignore[arg-type]
    assert sizes(Posterior(advantage="mean", **plain)) == {"t0": 8, "t1": 8}  # type: ignore[arg-type]


def test_probes_go_feature_by_feature_to_what_was_not_seen_for_longest() -> None:
    strategy = Posterior(probe_share=0.5, hard_share=0.0)
    tasks = pool(6, num_kin=2)
    state = strategy.start(tasks)
    for version, i in enumerate([0, 1, 2, 3, 5]):
        state = strategy.fold(state, group(tasks.tasks[i], 4, 8, version=version))
    chosen = strategy.select(state, 2, policy_version=9, seed=0)
    assert {d.task_id: d.why for d in chosen.decisions if d.kind == "probe"} == {
        "t4": "probe of kin:0: never seen",
        "t1": "probe of kin:1: last seen at version 1",
    }


@pytest.mark.parametrize("shape", ["u_shaped", "flat"])
def test_predictions_come_true_within_five_points_in_a_drifting_world(shape: str) -> None:
    world = make_world(shape, "kin", "std", 400)
    log = play(lambda _: Posterior(), world, groups_per_step=32, max_rollouts=10_000, seed=400)
    found = reliability(np.array(log.expected), np.array(log.mixed, dtype=float))
    assert len(log.expected) > 900
    assert found.gap < 0.05
    assert abs(found.bias) < 0.05


def test_replaying_a_log_tells_memory_from_forgetfulness() -> None:
    """The same log, predicted by the posterior and by one that forgets everything between versions."""
    strategy, tasks, rng = Posterior(), pool(30), np.random.default_rng(1)
    rates = [0.02, 0.98, 0.5] * 10
    state, log = strategy.start(tasks), []
    for version in range(12):
        evidence = [e for i in range(30) for e in group(task(i), int(rng.binomial(8, rates[i])), 8, version=version)]
        state, log = strategy.fold(state, evidence), log + evidence
    honest = predict(strategy, tasks, log)
    forgetful = predict(Mopps(discount=1e-9), tasks, log)
    assert reliability(honest.expected, honest.seen).brier < 0.7 * reliability(forgetful.expected, forgetful.seen).brier


def test_explanations_carry_posterior_evidence_decision_and_why() -> None:
    strategy = Posterior()
    state = iterate(strategy, strategy.start(pool(6)), [0.5] * 6, versions=range(8), groups=3)
    text = "\n".join(strategy.explain(state, "t3", policy_version=8))
    for part in ("pass rate 0.", "90% interval", "Beta(", "evidence: ", "newest visit: ", "prior 0.",
                 "in logits: ", "P(p >= 0.75) = ",
                 "retires above 0.90, returns below 0.50", "carries gradient", "of 6"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"readmit_when": 0.95}, "the gap between them is the hysteresis"),
        ({"probe_size": 1}, "probe_size is 1; want 2..8"),
        ({"large_group": 4}, "large_group 4 is under 8"),
        ({"probe_share": 0.4, "hard_share": 0.3}, "at most half in all"),
        ({"too_hard": 0.8}, "want 0 < low < high < 1"),
        ({"repeat_cost": 1.0}, "repeat_cost is 1.0; want 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(CurriculumError, match=message):
        Posterior(**settings)  # type: ignore[arg-type]


def test_sizes_follow_the_group_size_unless_they_are_given() -> None:
    assert (Posterior(group_size=3).small, Posterior(group_size=3).large) == (2, 6)
    assert (Posterior(probe_size=8, large_group=8).small, Posterior(probe_size=8, large_group=8).large) == (8, 8)


def test_even_the_smallest_budget_is_kept_whatever_the_draw() -> None:
    strategy = Posterior(hard_share=0.4)
    state = visited(strategy, [0, 0, 0], tasks=3)
    assert max(strategy.select(state, 1, policy_version=3, seed=s).num_rollouts for s in range(60)) <= 8


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize(
    "settings", [{}, {"probe_share": 0.2, "hard_share": 0.3}, {"probe_share": 0.5, "hard_share": 0}]
)
def test_a_selection_of_few_groups_never_costs_more_than_was_asked_for(n: int, settings: dict[str, float]) -> None:
    """Where probes, retired tasks that are due, and tasks that always fail all want a part of a small budget."""
    strategy = Posterior(large_gain=1.0, **settings)
    state = strategy.start(pool(40, num_kin=4))
    for version in range(3):
        seen = [e for i in range(24) for e in group(task(i, kin=i % 4), 8 if i < 8 else 0, 8, version=version)]
        state = strategy.fold(state, seen)
    assert state.columns.retired.sum() > 0
    for seed in range(150):
        assert strategy.select(state, n, policy_version=30, seed=seed).num_rollouts <= 8 * n
