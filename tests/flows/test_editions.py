"""A pool that changes while a run is down: what is done stays done, the rest goes on with the new tasks and says so."""

from __future__ import annotations

from dataclasses import replace

from flows_fakes import CONFIG, a_run, an_artifact

from environments.types import TaskPool
from flows.editions import note_iteration, open_editions
from flows.history import RunNotes
from flows.home import Home, open_desk
from flows.loop import RunState, on_pool
from tasks.pass_rates import Curriculum
from tasks.policies import Policy
from tasks.progress import Silent


def edited(pool: TaskPool) -> TaskPool:
    """Without the first task, with the second reworded."""
    second = replace(pool.tasks[1], instruction="Another instruction.")
    return replace(pool, version=pool.version + 1, tasks=(second, *pool.tasks[2:]))


def test_iterations_keep_the_pool_they_chose_from(tmp_path):
    pool = a_run(tmp_path / "run", iterations=1)
    editions = open_editions(tmp_path, pool, "")
    note_iteration(tmp_path, editions, 0)
    note_iteration(tmp_path, editions, 1)
    resumed = open_editions(tmp_path, edited(pool), "")
    assert [resumed.at(n).digest for n in range(4)] == [pool.digest] * 2 + [edited(pool).digest] * 2
    assert open_editions(tmp_path, edited(pool), "") == resumed
    assert {t.task_id for t in resumed.every_task.tasks} == {t.task_id for t in pool.tasks}


def test_a_pool_changed_before_anything_was_finished_or_for_a_fresh_run_is_simply_the_pool(tmp_path):
    pool = a_run(tmp_path / "run", iterations=1)
    open_editions(tmp_path, pool, "")
    assert open_editions(tmp_path, edited(pool), "").at(0).digest == edited(pool).digest
    note_iteration(tmp_path, open_editions(tmp_path, edited(pool), ""), 5)
    fresh = open_editions(tmp_path, pool, "salt of a fresh run")
    assert (fresh.done, fresh.at(0).digest) == (0, pool.digest)


def test_a_resumed_run_says_what_became_of_its_tasks_and_keeps_what_it_knows_of_the_others(tmp_path):
    pool = a_run(tmp_path, iterations=2)
    folded = RunNotes(Home(tmp_path), CONFIG.run_id).manifests("curriculum")[-1]
    progress = Silent()
    with open_desk(Home(tmp_path), CONFIG, progress) as desk:
        state = RunState(
            policy=Policy(manifest=an_artifact(desk, "policy 2"), version=2),
            start=Policy(manifest=an_artifact(desk, "policy 0"), version=0),
            curriculum=Curriculum(strategy=CONFIG.strategy(), pool=pool, folded=folded),
        )
        before = state.curriculum.state(desk)
        after = on_pool(desk, state, edited(pool)).curriculum.state(desk)
    assert progress.lines == [
        f"[yellow]the task pool has changed: 1 task(s) removed, their evidence is dropped: {pool.tasks[0].task_id}[/]",
        "[yellow]the task pool has changed: 1 task(s) edited, their evidence is dropped and they start from their kin: "
        f"{pool.tasks[1].task_id}[/]",
    ]
    assert after.columns.rollouts[0] == 0
    assert after.columns.rollouts[1:].tolist() == before.columns.rollouts[2:].tolist()
