"""What `--json` answers has the keys that README.md lists."""

from __future__ import annotations

import json

import pytest
from flows_fakes import CONFIG, a_run, documented

from flows.cli import curriculum, runs, tasks, trajectory
from flows.cli.options import Common, Settings
from flows.history import trajectories_of
from flows.home import Home

RUN = CONFIG.run_id
SMALL = Settings(set=("pool.train_tasks=3", "pool.held_out_tasks=3", "curriculum.tasks_per_iteration=2"))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    root = tmp_path_factory.mktemp("home")
    a_run(root)
    return Home(root)


def test_the_readme_is_read_as_it_is_meant():
    assert documented("promote") == {"model", "champion", "previous"}
    assert {"held_out", "greedy", "stage_s"} < documented("finetune")
    assert "mlflow" not in documented("finetune")


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("tasks list", lambda common: tasks.list_(settings=SMALL, common=common)),
        ("runs list", lambda common: runs.list_(common=common)),
        ("runs show", lambda common: runs.show(RUN, common=common)),
        ("trajectory show RUN", lambda common: trajectory.show(RUN, common=common)),
        ("curriculum show RUN", lambda common: curriculum.show(RUN, common=common)),
    ],
)
def test_a_command_answers_the_keys_that_are_documented(command, call, home, capsys):
    assert call(Common(home=home.root, json=True)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == documented(command)


def test_one_task_and_one_trajectory_are_answered_as_documented(home, capsys):
    common = Common(home=home.root, json=True)
    tasks.list_(settings=SMALL, common=common)
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    assert [row["split"] for row in listed] == ["train"] * 3 + ["held_out"] * 3
    assert tasks.show(listed[0]["task_id"], settings=SMALL, common=common) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == documented("tasks show")

    rollout = trajectories_of(home, RUN)[0][0]
    assert trajectory.show(RUN, rollout.rollout_id, common=common) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer.keys() == documented("trajectory show RUN ROLLOUT")
    assert (answer["rollout_id"], answer["num_turns"], answer["passed"]) == (rollout.rollout_id, 0, True)

    whole = curriculum.show(RUN, task=rollout.task_id, common=common)
    assert whole == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == documented("curriculum show RUN --task T")


def test_a_listing_for_people_holds_names_whole_in_eighty_columns(home, capsys):
    """What is cut short cannot be given to the next command."""
    common = Common(home=home.root)
    tasks.list_(settings=SMALL, common=common)
    listed = capsys.readouterr().err
    assert sum(len(line.split()[1]) == len("service_repair-03-0123456789") for line in listed.splitlines()[4:-1]) == 6
    curriculum.show(RUN, common=common)
    assert trajectories_of(home, RUN)[0][0].task_id in capsys.readouterr().err


def test_a_single_step_is_listed_as_one_and_is_not_resumed_as_a_fine_tuning_run(tmp_path, capsys):
    folder = Home(tmp_path).run("step-0a8b4eb0")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    common = Common(home=tmp_path)
    assert runs.list_(common=common) == 0
    assert "one step" in capsys.readouterr().err
    assert runs.resume("step-0a8b4eb0", common=common) == 2
    assert "give its `longbreath step` command again" in capsys.readouterr().err
