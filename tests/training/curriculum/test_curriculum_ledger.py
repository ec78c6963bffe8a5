"""Evidence in, state out: pure, deduplicated, exact on resume."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from curriculum_fakes import group, iterate, pool, task

from environments.types import Group, Judged, TaskPool, Trajectory, Unjudged, Usage, Verdict
from training.curriculum.base import CurriculumError, Evidence, evidence_of
from training.curriculum.pool import with_pool
from training.curriculum.saving import from_json, to_json
from training.curriculum.strategies import STRATEGIES, build
from training.curriculum.uniform import Uniform


def columns(state):  # type: ignore[no-untyped-def]
    return to_json(state)["columns"]


def test_folding_the_same_evidence_twice_equals_folding_it_once() -> None:
    for name in STRATEGIES:
        strategy = build(name)
        evidence = [e for spec in pool(3).tasks for e in group(spec, 3, 8)]
        once = strategy.fold(strategy.start(pool(3)), evidence)
        twice = strategy.fold(strategy.fold(strategy.start(pool(3)), evidence + evidence[:5]), evidence)
        assert columns(once) == columns(twice)
        assert once.scalars == twice.scalars
        assert twice.ignored.duplicate == 5 + 24


def test_a_rollout_id_is_remembered_whatever_version_its_copy_claims() -> None:
    strategy = Uniform()
    evidence = group(task(0), 1, 4)
    copies = [dataclasses.replace(e, policy_version=3) for e in evidence]
    state = strategy.fold(strategy.fold(strategy.start(pool(1)), evidence), copies)
    assert state.columns.rollouts.tolist() == [4]
    assert state.ignored.duplicate == 4


def test_evidence_folded_in_parts_equals_evidence_folded_whole() -> None:
    strategy = Uniform()
    evidence = group(task(0), 0, 8) + group(task(0), 5, 8, version=1) + group(task(1), 8, 8, version=1)
    whole = strategy.fold(strategy.start(pool(2)), evidence)
    parts = strategy.start(pool(2))
    for cut in (evidence[:3], evidence[3:11], evidence[11:]):
        parts = strategy.fold(parts, cut)
    assert to_json(whole) == to_json(parts)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_run_saved_and_resumed_ends_in_the_same_state_as_one_undisturbed(name: str) -> None:
    tasks, rates = pool(24, num_kin=3), np.linspace(0.0, 1.0, 24).tolist()
    strategy = build(name)
    straight = iterate(strategy, strategy.start(tasks), rates, versions=range(6), groups=4)
    half = iterate(strategy, strategy.start(tasks), rates, versions=range(3), groups=4)
    woken = from_json(json.loads(json.dumps(to_json(half))))
    assert to_json(iterate(build(name), woken, rates, versions=range(3, 6), groups=4)) == to_json(straight)


def test_folding_leaves_the_old_state_as_it_was_and_arrays_cannot_be_written() -> None:
    strategy = Uniform()
    old = strategy.start(pool(2))
    before = json.dumps(to_json(old))
    strategy.fold(old, group(task(0), 4, 8))
    assert json.dumps(to_json(old)) == before
    with pytest.raises(ValueError, match="read-only"):
        old.columns.visits[0] = 1


def test_visits_streaks_and_totals_are_counted() -> None:
    strategy = Uniform()
    state = strategy.start(pool(1))
    for version, passes in enumerate([4, 0, 0, 8]):
        state = strategy.fold(state, group(task(0), passes, 8, version=version))
    c = state.columns
    assert (c.visits[0], c.streak[0], c.rollouts[0], c.passed[0], c.tokens[0]) == (4, 3, 32, 12, 320)
    assert (c.batch_passes[0], c.batch_size[0], c.last_version[0]) == (8, 8, 3)
    assert strategy.fold(state, group(task(0), 1, 8, version=4)).columns.streak[0] == 0


def test_late_evidence_of_an_older_version_counts_but_is_no_visit() -> None:
    strategy = Uniform()
    state = strategy.fold(strategy.start(pool(1)), group(task(0), 4, 8, version=5))
    state = strategy.fold(state, group(task(0), 0, 8, version=3))
    c = state.columns
    assert (c.visits[0], c.batch_passes[0], c.batch_size[0], c.last_version[0]) == (1, 4, 8, 5)
    assert (c.passes[0], c.fails[0], state.version) == (4.0, 12.0, 5)


def test_evidence_that_is_too_old_or_of_no_task_here_changes_only_counters() -> None:
    strategy = Uniform()
    state = strategy.fold(strategy.start(pool(2)), group(task(0), 4, 8, version=40))
    edited = group(task(1, instruction="another"), 8, 8, version=40)
    after = strategy.fold(state, group(task(1), 8, 8, version=3) + group(task(9), 8, 8, version=40) + edited)
    assert columns(after) == columns(state)
    assert dataclasses.asdict(after.ignored) == {"duplicate": 0, "stale": 8, "unknown_task": 8, "other_digest": 8}


def test_ids_are_remembered_exactly_as_long_as_their_evidence_may_still_arrive() -> None:
    strategy = Uniform()
    state = strategy.start(pool(1))
    for version in range(30):
        state = strategy.fold(state, group(task(0), 1, 2, version=version))
    assert [v for v, _ in state.seen] == list(range(13, 30))
    again = strategy.fold(state, group(task(0), 1, 2, version=13) + group(task(0), 1, 2, version=12))
    assert (again.ignored.duplicate, again.ignored.stale) == (2, 2)


def trajectory(index: int) -> Trajectory:
    return Trajectory(
        rollout_id=f"r{index}",
        group_id="g",
        index=index,
        attempt=0,
        task_id="t0",
        status="completed",
        fault="",
        chains=(),
        turns=(),
        final_payload="done",
        usage=Usage(turns=1, calls=1, prompt_tokens=1, completion_tokens=1, wall_s=0.1, sandbox_s=0.1),
        policy_versions=(4, 6),
        final_state_uri="",
    )


def test_rollouts_whose_fault_was_ours_are_no_evidence() -> None:
    members = tuple(trajectory(i) for i in range(3))
    made = Group(group_id="g", task_id="t0", task_digest=task(0).digest, requested_size=3, members=members)
    verdict = Verdict(gates=(), scores=(), reward=1.0, passed=True)
    results = [verdict, Unjudged(reason="the store was down"), Verdict(gates=(), scores=(), reward=0.0, passed=False)]
    judged = [Judged(rollout_id=f"r{i}", group_id="g", task_id="t0", result=r) for i, r in enumerate(results)]
    evidence = evidence_of(made, judged)
    assert [(e.rollout_id, e.passed, e.policy_version) for e in evidence] == [("r0", True, 4), ("r2", False, 4)]
    with pytest.raises(CurriculumError, match=r"no verdict for \['r2'\]; judge every member first"):
        evidence_of(made, judged[:2])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("reward", float("nan"), "want a finite number"), ("reward", 1.5, "1.5"), ("policy_version", -1, "want >= 0"),
     ("rollout_id", "", "could not be deduplicated"), ("tokens", -3, "want >= 0")],
)  # fmt: skip
def test_evidence_that_contradicts_itself_is_refused(field: str, value: object, message: str) -> None:
    good = group(task(0), 1, 1)[0]
    with pytest.raises(CurriculumError, match=message):
        Evidence(**{f.name: getattr(good, f.name) for f in dataclasses.fields(good)} | {field: value})  # type: ignore[arg-type]


def test_a_pool_changed_in_mid_run_keeps_evidence_by_digest_and_says_what_it_did() -> None:
    strategy = build("posterior")
    state = strategy.start(pool(3))
    for i in range(3):
        state = strategy.fold(state, group(task(i), 2 * i, 8))
    edited = TaskPool(name="fake", version=2, split="train", tasks=(task(2), task(0, instruction="edited"), task(7)))
    after, change = with_pool(state, edited)
    assert after.columns.rollouts.tolist() == [8, 0, 0]
    assert after.columns.batch_passes.tolist() == [4, 0, 0]
    assert (change.kept, change.added, change.removed, change.edited) == (1, ("t7",), ("t1",), ("t0",))
    assert change.lines() == (
        "1 task(s) new, they start from their kin: t7",
        "1 task(s) removed, their evidence is dropped: t1",
        "1 task(s) edited, their evidence is dropped and they start from their kin: t0",
    )
    again = strategy.fold(after, group(task(0), 8, 8, tag="old edition"))
    assert again.ignored.other_digest == 8
    assert strategy.select(after, 2, policy_version=1, seed=0).num_rollouts <= 16


def test_an_unchanged_pool_changes_nothing_and_says_nothing() -> None:
    strategy = build("posterior")
    state = strategy.fold(strategy.start(pool(3)), group(task(1), 3, 8))
    after, change = with_pool(state, pool(3))
    assert to_json(after) == to_json(state)
    assert change.lines() == ()


def test_held_out_and_empty_pools_are_refused() -> None:
    with pytest.raises(CurriculumError, match="held_out split; training on it would spoil the benchmark"):
        Uniform().start(pool(2, split="held_out"))
    with pytest.raises(CurriculumError, match="is empty"):
        Uniform().start(pool(0))


def test_a_state_belongs_to_the_strategy_that_made_it() -> None:
    state = build("uniform").start(pool(2))
    with pytest.raises(CurriculumError, match="made by strategy 'uniform', not 'posterior'"):
        build("posterior").select(state, 1, policy_version=0, seed=0)
    with pytest.raises(CurriculumError, match="made by strategy 'uniform', not 'posterior'"):
        build("posterior").fold(state, group(task(0), 1, 8))


def test_a_damaged_or_foreign_state_file_is_refused() -> None:
    data = to_json(Uniform().start(pool(2)))
    with pytest.raises(CurriculumError, match="has schema 99"):
        from_json(data | {"schema_version": 99})
    data["columns"]["visits"] = [0]
    with pytest.raises(CurriculumError, match=r"columns \['visits'\] do not have one value a task \(2\)"):
        from_json(data)
