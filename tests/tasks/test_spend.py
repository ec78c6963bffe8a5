"""What a run spent, against what uniform choice would have needed for as many groups with gradient."""

from __future__ import annotations

from tasks_fakes import a_group, a_pool, counting, desk_at, verdicts_of

from tasks.policies import Policy
from tasks.report import TrainingRecord, rewards_by_task, spend
from tasks.stage import perform
from training.curriculum.base import Selection
from training.curriculum.monitor import Share, ZeroGradientReport

POOL = a_pool("a", "b")
A, B = POOL.tasks


def an_iteration(tmp_path, number, judged_groups, *, probes=0):
    mixed = sum(len({j.passed for j in verdicts}) > 1 for _, verdicts in judged_groups)
    none = Share(groups=0, rollouts=0, tokens=0)
    return TrainingRecord(
        number=number,
        policy=Policy(manifest=perform(desk_at(tmp_path), counting([])), version=number + 1),
        selection=Selection(strategy="posterior", policy_version=number, seed=0, decisions=()),
        groups=tuple(g for g, _ in judged_groups),
        verdicts=tuple(j for _, verdicts in judged_groups for j in verdicts),
        probe_rollouts=probes,
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


def test_uniform_needs_more_where_the_curriculum_found_the_mixed_task(tmp_path):
    iterations = [
        an_iteration(
            tmp_path, 0, [judged("g0", A, True, False, True, False), judged("g1", B, False, False, False, False)]
        ),
        an_iteration(tmp_path, 1, [judged("g2", A, True, True, True, False)], probes=4),
    ]
    used = spend(iterations, POOL)
    assert (used.training, used.probes) == (12, 4)
    # Task a is always mixed, b never: uniform gets 1 group in 2, so 2 mixed groups cost 4 groups of 4.
    assert used.uniform_equivalent == 16


def test_without_a_mixed_group_nothing_can_be_said_of_uniform(tmp_path):
    used = spend([an_iteration(tmp_path, 0, [judged("g0", A, False, False)])], POOL)
    assert (used.training, used.uniform_equivalent) == (2, None)
    assert spend([], POOL).uniform_equivalent is None


def test_rewards_leave_out_what_could_not_be_judged():
    _, verdicts = judged("g0", A, True, None, False)
    assert rewards_by_task(verdicts) == {"a": [1.0, 0.0]}
