"""What a run spent, against what uniform choice would have needed for as many groups with gradient."""

from __future__ import annotations

from tasks_fakes import a_group, a_pool, counting, desk_at, verdicts_of

from tasks.benchmark import rewards_by_task
from tasks.policies import Policy
from tasks.report import TrainingRecord, spend
from tasks.stage import perform
from training.curriculum.base import Decision, Kind, Selection
from training.curriculum.monitor import Share, ZeroGradientReport

POOL = a_pool("a", "b")
A, B = POOL.tasks


def chosen(task, size, kind: Kind) -> Decision:
    return Decision(
        task_id=task.task_id,
        task_digest=task.digest,
        kind=kind,
        group_size=size,
        state="new",
        why="never seen",
        alpha=1.0,
        beta=1.0,
        mean=0.5,
        low=0.05,
        high=0.95,
        signal=0.3,
    )


def an_iteration(tmp_path, number, judged_groups, *, measured_apart=0, probes=()):
    """`probes`: the tasks whose group only measures, as a selection says."""
    mixed = sum(len({j.passed for j in verdicts}) > 1 for _, verdicts in judged_groups)
    by_id = {t.task_id: t for t in POOL.tasks}
    none = Share(groups=0, rollouts=0, tokens=0)
    return TrainingRecord(
        number=number,
        policy=Policy(manifest=perform(desk_at(tmp_path), counting([])), version=number + 1),
        selection=Selection(
            strategy="posterior",
            policy_version=number,
            seed=0,
            decisions=tuple(
                chosen(by_id[g.task_id], len(g.members), "probe" if by_id[g.task_id] in probes else "training")
                for g, _ in judged_groups
            ),
        ),
        groups=tuple(g for g, _ in judged_groups),
        verdicts=tuple(j for _, verdicts in judged_groups for j in verdicts),
        quality=perform(desk_at(tmp_path), counting([])),
        measured_apart=measured_apart,
        zero_gradient=ZeroGradientReport(
            policy_version=number,
            all_fail=none,
            all_pass=none,
            mixed=Share(groups=mixed, rollouts=4 * mixed, tokens=0),
            expected_useful=None,
            surprise=None,
            alarm="",
        ),
    )


def judged(group_id, task, *passed):
    group = a_group(group_id, task, len(passed))
    return group, verdicts_of(group, *passed)


def test_a_probe_among_the_groups_counts_once_and_not_as_training(tmp_path):
    """As the posterior strategy measures: its probes are groups of the selection, and train like any other."""
    groups = [
        judged("g0", A, True, False, True, False, False, False, True, True),
        judged("g1", B, False, False, True, False),
    ]
    used = spend([an_iteration(tmp_path, 0, groups, probes=[B]), an_iteration(tmp_path, 1, groups, probes=[B])])
    assert (used.training, used.probes) == (16, 8)
    # Every group was mixed: uniform choice would have needed as many rollouts, and no more.
    assert used.uniform_equivalent == 24


def test_a_look_at_the_whole_pool_counts_beside_the_groups(tmp_path):
    """As the literal 75% rule measures: 8 rollouts of each task of the pool that never train."""
    group = judged("g0", A, True, False, True, False)
    used = spend([an_iteration(tmp_path, 0, [group], measured_apart=16)])
    assert (used.training, used.probes, used.uniform_equivalent) == (4, 16, 4)


def test_uniform_needs_more_where_the_curriculum_found_the_mixed_task(tmp_path):
    losing = [judged("g0", A, True, False, True, False), judged("g1", B, False, False, False, False)]
    winning = [judged("g2", A, True, True, True, False)]
    used = spend([an_iteration(tmp_path, 0, losing), an_iteration(tmp_path, 1, winning)])
    assert (used.training, used.probes) == (12, 0)
    # Task a is always mixed, b never: uniform gets 1 group in 2, so 2 mixed groups cost 4 groups of 4.
    assert used.uniform_equivalent == 16


def test_without_a_mixed_group_nothing_can_be_said_of_uniform(tmp_path):
    used = spend([an_iteration(tmp_path, 0, [judged("g0", A, False, False)])])
    assert (used.training, used.uniform_equivalent) == (2, None)
    assert spend([]).uniform_equivalent is None


def test_rewards_leave_out_what_could_not_be_judged():
    _, verdicts = judged("g0", A, True, None, False)
    assert rewards_by_task(verdicts) == {"a": [1.0, 0.0]}
