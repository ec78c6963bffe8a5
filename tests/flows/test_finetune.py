"""A whole fine-tuning run, small: its answer, its report, MLflow's record, and the same command again.

Runs with `pytest -m slow`: each run starts a Prefect server of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flows_fakes import documented
from mlflow import MlflowClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LONGBREATH = Path(sys.executable).parent / "longbreath"
SMALL = (
    *("--set", "pool.train_tasks=6", "--set", "pool.held_out_tasks=6", "--set", "pool.max_horizon=4"),
    *("--set", "iterations=2", "--set", "curriculum.tasks_per_iteration=2", "--set", "curriculum.group_size=4"),
)


def finetune(home: Path, *words: str) -> tuple[dict, str]:
    """The answer, and what was said to people."""
    done = subprocess.run(
        [LONGBREATH, "finetune", *SMALL, "--home", str(home), "--json", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def first(home) -> dict:
    return finetune(home)[0]


def test_a_run_answers_what_is_documented_and_leaves_a_report(first):
    assert first.keys() == documented("finetune")
    assert first["held_out"]["gain"]["n"] == 6
    assert len(first["zero_gradient_share"]) == first["policy_version"] == 2
    assert first["rollouts"]["training"] + first["rollouts"]["probes"] <= 16
    assert first["orchestration_s"] < 3 * 2
    page = Path(first["report_path"]).read_text()
    assert first["run_id"] in page
    assert not re.search(r"(src|href)=[\"']https?://", page)


def test_the_same_command_again_does_nothing_twice_and_says_so(first, home):
    again, said = finetune(home)
    same = ("run_id", "held_out", "by_horizon", "rollouts", "zero_gradient_share", "model_uri", "promoted", "verdict")
    assert {key: again[key] for key in same} == {key: first[key] for key in same}
    assert said.count("done before, reused") >= 10
    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert [r.info.run_name for r in runs] == [first["run_id"]]
    assert len(client.search_model_versions("name = 'longbreath-agent'")) == 1
    assert {row.step for row in client.get_metric_history(runs[0].info.run_id, "rollouts/pass_rate")} == {0, 1}
    assert len(client.get_metric_history(runs[0].info.run_id, "rollouts/pass_rate")) == 2


def test_a_fresh_run_does_it_anew_and_greedy_success_is_told_when_asked_for(first, home):
    fresh, said = finetune(home, "--fresh", "--set", "benchmark.greedy=true")
    assert "done before, reused" not in said
    assert fresh["held_out"] == first["held_out"], "the same seed is the same run"
    assert fresh["greedy"]["gain"]["n"] == 6
