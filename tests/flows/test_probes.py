"""Rollouts that only measure are done once for the same weights and task: found again, verified, and counted once."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from flows_fakes import CONFIG, Scripted, an_artifact

from flows.config import RunConfig
from flows.home import Home, open_desk
from flows.loop import Iteration, RunState, iterate
from flows.overrides import with_flags
from tasks.evaluations import EVALUATE
from tasks.pass_rates import Curriculum
from tasks.policies import Policy
from tasks.pools import make_pools
from tasks.progress import Silent
from tasks.stage import Desk, Work

LITERAL = with_flags(CONFIG, ("curriculum.strategy=seventy_five",))  # 12 tasks, each probed with 8 rollouts


def begun(desk: Desk, config: RunConfig, *, version: int = 0) -> RunState:
    pool = make_pools(desk.workshop.suite(config.pool.suite), config.pool).train
    curriculum = Curriculum(strategy=config.strategy(), pool=pool, folded=None)
    policy = Policy(manifest=an_artifact(desk, "the weights"), version=version)
    return RunState(policy=policy, start=policy, curriculum=curriculum)


def iterations(root: Path, config: RunConfig, count: int, *, skips: bool = False, version: int = 0) -> list[Iteration]:
    """Iterations of a run in which 3 of a probe's 8 rollouts pass."""
    with open_desk(Home(root), config, Silent()) as desk:
        state, run, done = begun(desk, config, version=version), Scripted(desk, lambda task_id: 3, skips=skips), []
        for number in range(count):
            done.append(iterate(desk, run, config, state, number))
            state = done[-1].after
        return done


def probes_spent(done: list[Iteration]) -> list[int]:
    return [iteration.record.measured_apart for iteration in done]


def test_weights_that_a_skipped_step_left_are_not_measured_again(tmp_path):
    done = iterations(tmp_path, LITERAL, 3, skips=True)
    assert probes_spent(done) == [96, 0, 0]
    assert [d.probes.num_spent for d in done] == [96, 0, 0]
    assert done[1].probes.groups == done[0].probes.groups
    assert done[1].probes.judged.sha256 == done[0].probes.judged.sha256
    assert {e.policy_version for e in done[1].probes.evidence} == {1}


def test_weights_that_have_moved_are_measured_anew(tmp_path):
    done = iterations(tmp_path, LITERAL, 2)
    assert probes_spent(done) == [96, 96]
    assert not {g.group_id for g in done[0].probes.groups} & {g.group_id for g in done[1].probes.groups}


def test_the_same_rollouts_are_evidence_once(tmp_path):
    """20 versions of the same weights: longer than a state would remember rollouts that are not told again."""
    done = iterations(tmp_path, LITERAL, 20, skips=True)
    with open_desk(Home(tmp_path), LITERAL, Silent()) as desk:
        state = done[-1].after.curriculum.state(desk)
    assert state.columns.probes.tolist() == [8] * 12
    assert state.columns.probe_version.tolist() == [0] * 12
    assert state.ignored.duplicate == 19 * 96
    assert state.ignored.stale == 0


def test_another_run_of_the_store_finds_what_was_measured_whatever_it_calls_the_weights(tmp_path):
    first = iterations(tmp_path, LITERAL, 1, version=7)
    other = with_flags(LITERAL, ("name=other",))
    second = iterations(tmp_path, other, 1)
    assert (probes_spent(first), probes_spent(second)) == ([96], [0])
    assert {e.policy_version for e in first[0].probes.evidence} == {7}
    assert {e.policy_version for e in second[0].probes.evidence} == {0}
    with open_desk(Home(tmp_path), other, Silent()) as desk:
        assert second[0].after.curriculum.state(desk).columns.probes.tolist() == [8] * 12


@pytest.mark.parametrize("setting", ["seed=1", "rollouts.temperature=0.9", "curriculum.settings={probe_size: 4}"])
def test_another_way_to_measure_is_another_measurement(tmp_path, setting):
    iterations(tmp_path, LITERAL, 1)
    done = iterations(tmp_path, with_flags(LITERAL, (setting,)), 1)
    assert done[0].probes.found == frozenset()


def test_a_resumed_run_spent_what_it_had_spent(tmp_path):
    first, again = iterations(tmp_path, LITERAL, 2), iterations(tmp_path, LITERAL, 2)
    assert probes_spent(again) == probes_spent(first) == [96, 96]
    assert [d.probes.rollouts for d in again] == [d.probes.rollouts for d in first]


def test_a_run_killed_before_it_kept_all_asks_for_the_same_rollouts_again(tmp_path):
    """So that the store finds them: some evaluations are kept by then, and must not make it another plan."""

    class Killed(Scripted):
        def __call__(self, work: Work):
            if sum(w.stage == EVALUATE for w in self.done) == 5:
                raise KeyboardInterrupt
            return super().__call__(work)

    asked = []
    with open_desk(Home(tmp_path), LITERAL, Silent()) as desk:
        for runner in (Killed(desk, lambda task_id: 3), Scripted(desk, lambda task_id: 3)):
            with contextlib.suppress(KeyboardInterrupt):
                done = iterate(desk, runner, LITERAL, begun(desk, LITERAL), 0)
            asked.append(next(w.key(desk) for w in runner.done if w.stage.name == "roll_out"))
    assert asked[0] == asked[1]
    assert done.record.measured_apart == 96


def test_a_measurement_that_does_not_verify_is_done_again_and_it_alone(tmp_path):
    iterations(tmp_path, LITERAL, 1)
    with open_desk(Home(tmp_path), LITERAL, Silent()) as desk:
        run = Scripted(desk, lambda task_id: 3)
        iterate(desk, run, LITERAL, begun(desk, LITERAL), 0)
        kept = next(desk.store.find(w.key(desk)) for w in run.done if w.stage == EVALUATE)
        (desk.store.path(kept) / "groups.parquet").write_bytes(b"something else")
    done = iterations(tmp_path, with_flags(LITERAL, ("name=other",)), 1)
    assert probes_spent(done) == [8]
    assert sum(len(g.members) for g in done[0].probes.groups) == 96
