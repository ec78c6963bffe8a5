"""What tasks teach about others: features, their weights, the strength of the prior, drift and fading."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from curriculum_fakes import group, pool, roll, task

from environments.types import Limits, TaskPool, TaskSpec
from training.curriculum.base import CurriculumError
from training.curriculum.features import EVERY, Kinship, features_of
from training.curriculum.ledger import State
from training.curriculum.pool import with_pool
from training.curriculum.posterior import Posterior
from training.curriculum.prior import STRENGTHS, FeaturePrior
from training.curriculum.saving import from_json, to_json
from training.curriculum.signal import AdvantageMode, mixed_predictive


def tagged(number: int, *tags: str, horizon: int = 4) -> TaskSpec:
    """Task `t<number>` with tags."""
    limits = Limits(max_turns=9, max_tokens=99)
    return TaskSpec(
        task_id=f"t{number}", suite="fake", instruction="", seed=number, horizon=horizon, limits=limits, tags=tags
    )


def tagged_pool(*tasks: TaskSpec) -> TaskPool:
    return TaskPool(name="fake", version=1, split="train", tasks=tasks)


def told(strategy: Posterior, tasks: TaskPool, passes: dict[int, int], *, version: int = 0) -> State:
    """A state after one group of 8 on each of these rows."""
    evidence = [e for row, k in passes.items() for e in group(tasks.tasks[row], k, 8, version=version)]
    return strategy.fold(strategy.start(tasks), evidence)


def test_the_features_of_a_task_are_its_suite_each_tag_and_the_steps_its_horizon_has_reached() -> None:
    assert features_of(tagged(0, "fault:b", "fault:a", horizon=9)) == (
        "suite:fake", "horizon>=2", "horizon>=3", "horizon>=4", "horizon>=6", "horizon>=8", "fault:b", "fault:a",
    )  # fmt: skip
    assert features_of(tagged(0, horizon=1)) == ("suite:fake",)


def test_features_that_tell_no_two_tasks_apart_are_left_out() -> None:
    kinship = Kinship.of([("all", "a", "one"), ("all", "a"), ("all", "b"), ("all", "b")])
    assert kinship.names == (EVERY, "a", "b")
    assert kinship.kin_N.tolist() == [0, 0, 1, 1]
    assert kinship.bearers(2).tolist() == [False, False, True, True]
    assert Kinship.of(kinship.names_of_tasks()).names == kinship.names


def test_only_the_commonest_features_are_kept_when_there_are_too_many() -> None:
    pairs = [(f"pair:{i // 2}", "third" if i % 3 == 0 else "rest") for i in range(1000)]
    kinship = Kinship.of(pairs)
    assert len(kinship.names) == 256
    assert {"third", "rest"} < set(kinship.names)


def test_a_tag_alone_carries_over_to_tasks_with_which_no_other_tag_is_shared() -> None:
    """The very combination of tags is new; each tag has been seen in other company."""
    strategy = Posterior()
    tasks = tagged_pool(
        *(tagged(i, "hard" if i % 2 else "easy", f"other:{i // 2}") for i in range(20)),
        tagged(20, "hard", "never seen"), tagged(21, "easy", "never seen"), tagged(22, "hard", "easy"),
    )  # fmt: skip
    means = strategy.beliefs(told(strategy, tasks, {i: 0 if i % 2 else 8 for i in range(20)}), 1).mean_N
    assert means[20] < 0.25
    assert means[21] > 0.75
    assert means[22] == pytest.approx(0.5, abs=0.1)


def test_what_is_seen_of_one_horizon_holds_for_longer_ones_until_they_say_otherwise() -> None:
    strategy = Posterior()
    tasks = tagged_pool(*(tagged(i, horizon=2 + i) for i in range(20)))
    means = strategy.beliefs(told(strategy, tasks, {0: 8, 1: 8, 4: 0, 5: 0, 6: 0}), 1).mean_N
    assert means[2] > 0.35
    assert means[19] < 0.3


def test_a_feature_seen_once_says_less_than_one_seen_often() -> None:
    strategy = Posterior()
    tasks = tagged_pool(
        *(tagged(i, "often") for i in range(10)), tagged(10, "once"), tagged(11, "often"), tagged(12, "once")
    )
    often = strategy.beliefs(told(strategy, tasks, dict.fromkeys(range(9), 8)), 1).mean_N[11]
    once = strategy.beliefs(told(strategy, tasks, {10: 8}), 1).mean_N[12]
    assert 0.5 < once < often


def test_how_much_kin_say_is_learned_from_how_alike_they_are() -> None:
    strategy = Posterior()
    tasks = pool(30)
    alike = told(strategy, tasks, dict.fromkeys(range(30), 4))
    unlike = told(strategy, tasks, {i: 8 * (i % 2) for i in range(30)})
    prior = FeaturePrior()
    assert prior.strength(alike.learned) > 15
    assert prior.strength(unlike.learned) < 0.2


def test_the_strength_follows_the_marginal_likelihood() -> None:
    """Drawn from Beta(1, 1): the strength found is near 2."""
    strategy, tasks, rng = Posterior(), pool(400), np.random.default_rng(3)
    passes = {i: int(rng.binomial(8, rng.beta(1, 1))) for i in range(400)}
    learned = told(strategy, tasks, passes).learned
    assert FeaturePrior().strength(learned) == pytest.approx(2.0, rel=0.25)
    assert STRENGTHS[learned.strength_S.argmax()] == pytest.approx(2.0, rel=0.5)


def test_before_evidence_a_task_is_believed_as_jeffreys_has_it() -> None:
    """Beta(1/2, 1/2): 45% of groups of 4 are mixed."""
    beliefs = Posterior().beliefs(Posterior().start(pool(1)), 0)
    assert beliefs.alpha_N == pytest.approx([0.5], abs=0.03)
    assert beliefs.beta_N == pytest.approx([0.5], abs=0.03)
    assert mixed_predictive(beliefs.alpha_N, beliefs.beta_N, 4) == pytest.approx([0.453], abs=0.01)


def moving_pool(per_version: float, *, versions: int = 20) -> tuple[float, float, float]:
    """60 tasks whose logits all move by `per_version`; 16 groups a version. True means, first and last; believed."""
    strategy, rng = Posterior(), np.random.default_rng(5)
    tasks = pool(60, num_kin=3)
    logit = rng.normal(-1.0, 1.0, 60)
    state, means = strategy.start(tasks), []
    for version in range(versions):
        rates = 1 / (1 + np.exp(-(logit + per_version * version)))
        means.append(float(rates.mean()))
        chosen = strategy.select(state, 16, policy_version=version, seed=0)
        state = strategy.fold(state, roll(chosen, rates.tolist(), rng))
    return means[0], means[-1], float(strategy.beliefs(state, versions).mean_N.mean())


@pytest.mark.parametrize("per_version", [0.08, -0.06])
def test_beliefs_follow_a_policy_that_learns_or_forgets(per_version: float) -> None:
    first, last, believed = moving_pool(per_version)
    assert abs(believed - last) < abs(believed - first)


def test_beliefs_stay_where_nothing_moves() -> None:
    _, last, believed = moving_pool(0.0)
    assert believed == pytest.approx(last, abs=0.08)


@pytest.mark.parametrize(("passes", "sign"), [(8, 1), (0, -1)])
def test_a_task_that_is_visited_moves_as_all_do_so_its_lag_is_not_taken_for_a_move_again_and_again(
    passes: int, sign: int
) -> None:
    """All pass half their rollouts; from then on the ten that are visited pass all, or none: one move, seen 100 times.

    Left where they were, the ten would lag, and the other ten be moved by 20 logits for it.
    """
    strategy, tasks = Posterior(), pool(20)
    state = told(strategy, tasks, dict.fromkeys(range(20), 4))
    moved = []
    for version in range(1, 101):
        state = strategy.fold(state, [e for i in range(10) for e in group(task(i), passes, 8, version=version)])
        moved.append(sign * float(state.learned.shift_F.sum()))
    assert moved[0] == pytest.approx(0.45, abs=0.05)
    assert moved[-1] < 3.0
    assert moved[-1] - moved[49] < 0.3


def settled_pool(at: float, strategy: Posterior, *, versions: int = 300) -> tuple[float, float]:
    """120 tasks end at logits `at` +- 1 and hover there; 12 groups a version. Mean rate, believed and true.

    Both over the second half of the versions and the whole pool, visited or not.
    """
    rng, tasks = np.random.default_rng(0), pool(120, num_kin=4)
    state, logit, means = strategy.start(tasks), rng.normal(0, 1.5, 120), []
    for version in range(versions):
        rates = 1 / (1 + np.exp(-logit))
        if version >= versions // 2:
            means.append((strategy.beliefs(state, version).mean_N.mean(), rates.mean()))
        chosen = strategy.select(state, 12, policy_version=version, seed=0)
        state = strategy.fold(state, roll(chosen, rates.tolist(), rng))
        logit = at + 0.97 * (logit - at) + (1 - 0.97**2) ** 0.5 * rng.normal(0, 1, 120)
    believed, true = np.mean(means, axis=0)
    return float(believed), float(true)


@pytest.mark.parametrize("advantage", ["std", "mean"])
@pytest.mark.parametrize("at", [3.5, -3.5])
def test_beliefs_hold_in_a_pool_that_is_solved_to_the_end_and_in_one_that_is_lost(
    at: float, advantage: AdvantageMode
) -> None:
    believed, true = settled_pool(at, Posterior(advantage=advantage))
    assert believed == pytest.approx(true, abs=0.01)


def test_tasks_that_were_brought_to_one_end_are_found_more_alike_than_they_were_at_first_sight() -> None:
    strategy, tasks, rng = Posterior(), pool(60), np.random.default_rng(4)
    state = told(strategy, tasks, {i: 8 * (i % 2) for i in range(60)})
    assert strategy.prior.strength(state.learned) < 0.2
    for version in range(1, 40):
        visited = rng.choice(60, 8, replace=False)
        evidence = [e for i in visited for e in group(task(int(i)), int(rng.binomial(8, 0.9)), 8, version=version)]
        state = strategy.fold(state, evidence)
    assert strategy.prior.strength(state.learned) > 2.0


def test_what_a_task_gained_from_its_own_lessons_is_not_expected_of_tasks_without() -> None:
    """20 tasks that gain half a logit a lesson, 20 of the same kin that are only looked at once."""
    strategy, rng = Posterior(), np.random.default_rng(1)
    tasks = pool(40)
    logit = rng.normal(-0.5, 0.5, 40)
    state = strategy.start(tasks)
    for version in range(8):
        trained = range(21) if version == 0 else range(20)
        passes = {i: int(rng.binomial(8, 1 / (1 + np.exp(-logit[i])))) for i in trained}
        state = strategy.fold(state, [e for i, k in passes.items() for e in group(task(i), k, 8, version=version)])
        for i, k in passes.items():
            logit[i] += 0.5 * (0 < k < 8)
    beliefs = strategy.beliefs(state, 8)
    assert beliefs.mean_N[:20].mean() > 0.8
    assert beliefs.mean_N[21:].mean() < 0.6


def test_a_task_moves_with_its_features_while_it_is_not_looked_at() -> None:
    strategy = Posterior()
    tasks = pool(21)
    state = told(strategy, tasks, dict.fromkeys(range(21), 2))
    before = strategy.beliefs(state, 1).mean_N[20]
    state = strategy.fold(state, [e for i in range(20) for e in group(task(i), 6, 8, version=1)])
    after = strategy.beliefs(state, 2)
    assert after.mean_N[20] > before + 0.15
    assert state.columns.rollouts[20] == 8


def test_evidence_of_a_policy_that_swings_is_worth_less_than_of_one_that_holds() -> None:
    rng = np.random.default_rng(2)
    kept = {}
    for name, swing in (("holds", 0.0), ("swings", 3.0)):
        strategy, tasks = Posterior(), pool(40)
        state, logit = strategy.start(tasks), rng.normal(0, 1, 40)
        for version in range(8):
            rates = 1 / (1 + np.exp(-(logit + swing * rng.normal(0, 1, 40))))
            passes = rng.binomial(8, rates)
            evidence = [e for i in range(40) for e in group(task(i), int(passes[i]), 8, version=version)]
            state = strategy.fold(state, evidence)
        kept[name] = strategy.prior.discount(state.learned)
    assert kept["holds"] > 0.9
    assert kept["swings"] < 0.75


def test_old_evidence_fades_towards_the_prior() -> None:
    strategy = Posterior()
    tasks = pool(20)
    state = told(strategy, tasks, {i: 8 if i == 0 else 2 for i in range(20)})
    means = [strategy.beliefs(state, v).mean_N[0] for v in (0, 20, 60, 400)]
    assert means[0] > 0.75
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(strategy.beliefs(state, 400).prior_mean_N[0], abs=0.01)


def test_what_was_learned_survives_saving_exactly() -> None:
    strategy = Posterior()
    tasks = tagged_pool(*(tagged(i, "a" if i % 2 else "b", horizon=2 + i % 7) for i in range(20)))
    state = told(strategy, tasks, {i: i % 9 for i in range(20)})
    woken = from_json(json.loads(json.dumps(to_json(state))))
    assert to_json(woken) == to_json(state)
    assert strategy.beliefs(woken, 3).mean_N.tolist() == strategy.beliefs(state, 3).mean_N.tolist()


def test_a_feature_that_leaves_the_pool_moves_no_task_that_stays() -> None:
    strategy = Posterior()
    tasks = tagged_pool(*(tagged(i, "kept" if i < 6 else "rest", "going" if i % 2 else "staying") for i in range(12)))
    state = told(strategy, tasks, {i: 8 if i % 2 else 1 for i in range(12)})
    fewer = tagged_pool(*(t for i, t in enumerate(tasks.tasks) if i in (0, 1, 2, 4, 6, 8, 10)))
    after, change = with_pool(state, fewer)
    assert "going" not in after.tasks.kinship.names
    assert len(change.removed) == 5
    old = strategy.beliefs(state, 1)
    new = strategy.beliefs(after, 1)
    kept = [state.tasks.row(t) for t in after.tasks.ids]
    own = state.columns.passes[kept] / (state.columns.passes + state.columns.fails)[kept]
    assert new.mean_N == pytest.approx(own, abs=0.05)
    assert old.mean_N[kept] == pytest.approx(own, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 0.0}, "prior.memory is 0.0"),
        ({"first_strength": 0.0}, "want > 0 rollouts"),
        ({"first_discount": 1.2}, "prior.first_discount is 1.2"),
    ],
)
def test_a_prior_that_could_not_learn_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(CurriculumError, match=message):
        dataclasses.replace(FeaturePrior(), **settings)  # type: ignore[arg-type]
