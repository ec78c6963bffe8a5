"""Selections and folds are artifacts: read back equal, exact on resume, and keyed by what decides them."""

from __future__ import annotations

import json

import pytest
from tasks_fakes import a_group, a_pool, desk_at, stored, verdicts_of

from environments.types import Judged
from tasks.pass_rates import (
    EVIDENCE,
    STATE,
    Curriculum,
    CurriculumConfig,
    Request,
    decision_rows,
    fold,
    new_evidence,
    read_selection,
    requests_of,
    select,
    zero_gradient,
)
from tasks.stage import perform
from training.curriculum.base import CurriculumError
from training.curriculum.saving import to_json

POOL = a_pool("a", "b", "c", "d", "e", "f")
CONFIG = CurriculumConfig(tasks_per_iteration=3, group_size=4, strategy="posterior")


def fresh_curriculum():
    return Curriculum(strategy=CONFIG.build("std"), pool=POOL, folded=None)


def chosen_by(desk, curriculum, iteration):
    ask = Request(policy_version=iteration, iteration=iteration, groups=CONFIG.tasks_per_iteration)
    return read_selection(desk, perform(desk, select(desk, curriculum, ask)))


def one_iteration(desk, curriculum, iteration):
    """Select, let the first half of every group pass, fold."""
    selection = chosen_by(desk, curriculum, iteration)
    requests = requests_of(selection, POOL, prefix=f"i{iteration}-")
    groups = [a_group(r.group_id, r.task, r.size, version=iteration) for r in requests]
    verdicts = [j for g in groups for j in verdicts_of(g, *(i < len(g.members) // 2 for i in range(len(g.members))))]
    judged = stored(desk, Judged, verdicts, "judged")
    evidence = new_evidence(selection, groups, verdicts)
    folded = perform(desk, fold(desk, curriculum, evidence, judged, iteration=iteration))
    return Curriculum(strategy=curriculum.strategy, pool=POOL, folded=folded), evidence, judged


def test_a_selection_asks_for_no_more_rollouts_than_it_may_and_names_its_groups(tmp_path):
    selection = chosen_by(desk_at(tmp_path), fresh_curriculum(), 0)
    assert 0 < selection.num_rollouts <= 12
    requests = requests_of(selection, POOL, prefix="i000-")
    assert [r.group_id for r in requests] == [f"i000-{n:03d}-{d.task_id}" for n, d in enumerate(selection.decisions)]
    assert [r.size for r in requests] == [d.group_size for d in selection.decisions]
    assert {row["task"] for row in decision_rows(selection.decisions)} <= set("abcdef")


def test_the_saved_state_is_the_fold_of_the_state_before_and_the_evidence(tmp_path):
    desk, begun = desk_at(tmp_path), fresh_curriculum()
    first, evidence_1, _ = one_iteration(desk, begun, 0)
    second, evidence_2, _ = one_iteration(desk, first, 1)
    strategy = CONFIG.build("std")
    by_hand = strategy.fold(strategy.fold(strategy.start(POOL), evidence_1), evidence_2)
    assert to_json(second.state(desk)) == to_json(by_hand)
    assert first.folded.key in second.folded.parents
    assert sorted(p.name for p in desk.store.path(second.folded).iterdir()) == [EVIDENCE, STATE]


def test_a_resumed_run_has_the_same_states_and_chooses_the_same(tmp_path):
    desk, resumed = desk_at(tmp_path), desk_at(tmp_path, attempt=1)
    here, there = fresh_curriculum(), fresh_curriculum()
    for iteration in range(2):
        here, _, _ = one_iteration(desk, here, iteration)
    for iteration in range(2):
        there, _, _ = one_iteration(resumed, there, iteration)
    assert there == here
    assert len(resumed.progress.lines) == 6  # two selections, two judgements, two folds: all found
    assert chosen_by(resumed, there, 2) == chosen_by(desk_at(tmp_path / "elsewhere"), rebuilt(tmp_path, here), 2)


def rebuilt(tmp_path, curriculum):
    """The same curriculum, made from nothing in another store."""
    desk, again = desk_at(tmp_path / "elsewhere"), fresh_curriculum()
    for iteration in range(2):
        again, _, _ = one_iteration(desk, again, iteration)
    assert again.folded.sha256 == curriculum.folded.sha256
    return again


def test_other_evidence_of_the_same_verdicts_is_another_fold(tmp_path):
    desk = desk_at(tmp_path)
    _, evidence, judged = one_iteration(desk, fresh_curriculum(), 0)
    all_of_it = fold(desk, fresh_curriculum(), evidence, judged, iteration=0)
    less = fold(desk, fresh_curriculum(), evidence[:-1], judged, iteration=0)
    assert all_of_it.key(desk) != less.key(desk)


def test_what_could_not_be_judged_is_no_evidence(tmp_path):
    selection = chosen_by(desk_at(tmp_path), fresh_curriculum(), 0)
    decision = selection.decisions[0]
    task = next(t for t in POOL.tasks if t.task_id == decision.task_id)
    group = a_group("g", task, 3)
    evidence = new_evidence(selection, [group], verdicts_of(group, True, None, False))
    assert [(e.rollout_id, e.passed) for e in evidence] == [("g-0", True), ("g-2", False)]
    assert {e.kind for e in evidence} == {decision.kind}


def test_groups_without_gradient_are_counted_with_their_rollouts(tmp_path):
    selection = chosen_by(desk_at(tmp_path), fresh_curriculum(), 0)
    tasks = {t.task_id: t for t in POOL.tasks}
    groups = [a_group(f"g{i}", tasks[d.task_id], 2) for i, d in enumerate(selection.decisions)]
    verdicts = [j for g in groups for j in verdicts_of(g, False, False)]
    report = zero_gradient(new_evidence(selection, groups, verdicts), selection, CONFIG)
    assert report.zero_gradient_share == 1.0
    assert (report.all_fail.groups, report.all_fail.rollouts) == (len(groups), 2 * len(groups))


def test_the_state_is_kept_as_plain_json(tmp_path):
    desk = desk_at(tmp_path)
    after, _, _ = one_iteration(desk, fresh_curriculum(), 0)
    data = json.loads((desk.store.path(after.folded) / STATE).read_text())
    assert data["strategy"] == "posterior"
    assert data["tasks"]["ids"] == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategy": "luck"}, "no curriculum strategy 'luck'; choose one of"),
        ({"group_size": 1}, "group_size is 1"),
        ({"tasks_per_iteration": 0}, "tasks_per_iteration is 0; want at least 1"),
        ({"min_useful_share": 40}, "min_useful_share is 40; want a share in"),
        ({"min_watched_rollouts": 0}, "min_watched_rollouts is 0; want at least 1"),
    ],
)
def test_a_curriculum_that_cannot_work_is_refused_before_anything_is_run(changes, said):
    with pytest.raises((CurriculumError, ValueError), match=said):
        CurriculumConfig(**changes)
