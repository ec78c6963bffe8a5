"""One step, end to end, on the shipped policy: killed anywhere, the same command ends with the same weights."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

LONGBREATH = Path(sys.executable).parent / "longbreath"
STEP = ("step", "--tasks", "2", "--group", "4", "--set", "pool.max_horizon=4", "--json")


def run(home: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LONGBREATH, *words, "--home", str(home)], capture_output=True, text=True, timeout=280, check=False, env=env
    )


def last_line(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Where the undisturbed step was done."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(home) -> dict:
    return last_line(run(home, *STEP))


def test_a_step_rolls_out_judges_trains_and_says_what_happened(undisturbed):
    assert undisturbed["rollouts"] == 8
    assert undisturbed["infra_faults"] == 0
    assert undisturbed["policy_version"] == 1
    assert len(undisturbed["policy_digest"]) == 64


@pytest.mark.docker
def test_a_step_in_docker_boxes_is_a_step_of_its_own(tmp_path, undisturbed):
    image = os.environ.get("LONGBREATH_DOCKER_IMAGE", "python:3.12-slim")
    done = last_line(run(tmp_path, *STEP, "--set", f"rollouts.docker_image={image}"))
    assert (done["rollouts"], done["infra_faults"]) == (8, 0)
    assert done["run_id"] != undisturbed["run_id"]


def test_a_step_in_docker_boxes_without_an_engine_says_how_to_start_it(tmp_path):
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/nowhere.sock"}
    done = run(tmp_path, *STEP, "--set", "rollouts.docker_image=any", env=os.environ | nowhere)
    assert done.returncode == 1
    assert "no Docker engine answers" in done.stderr.splitlines()[-1]
    assert "DOCKER_HOST=unix:///path" in done.stderr.splitlines()[-1]


def killed_after(home: Path, seconds: float) -> None:
    """Start the step and SIGKILL its whole process group after so long, unless it ends before."""
    process = subprocess.Popen(
        [LONGBREATH, *STEP, "--home", str(home)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def killed_when(home: Path, pattern: str) -> bool:
    """Start the step and SIGKILL it as soon as a file below `home` matches; whether it was still running."""
    process = subprocess.Popen(
        [LONGBREATH, *STEP, "--home", str(home)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None:
        if any(p.stat().st_size for p in home.glob(pattern)):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.005)
    return False


BOUNDARIES = {
    "in the middle of rolling out": "work/*/trajectories.jsonl",
    "after the rollouts": "store/objects/*.rollouts",
    "after the verdicts": "store/objects/*.judged.parquet",
    "in the middle of training": "work/*/out/samples.parquet",
}


@pytest.mark.parametrize("where", ["in the middle of rolling out", "in the middle of training"])
def test_killed_there_the_same_command_ends_with_the_same_weights(where, undisturbed, tmp_path):
    assert killed_when(tmp_path, BOUNDARIES[where]), "the step ended before it could be killed"
    again = last_line(run(tmp_path, *STEP))
    assert again["policy_digest"] == undisturbed["policy_digest"]


@pytest.mark.slow
def test_killed_at_every_boundary_and_at_random_moments_it_ends_with_the_same_weights(undisturbed, tmp_path):
    for number, pattern in enumerate(BOUNDARIES.values()):
        home = tmp_path / str(number)
        killed_when(home, pattern)
        for moment in random.Random(number).choices(range(2, 12), k=2):
            killed_after(home, moment)
        assert last_line(run(home, *STEP))["policy_digest"] == undisturbed["policy_digest"]


def test_a_finished_step_is_not_done_again(undisturbed, home):
    again = run(home, *STEP)
    assert last_line(again)["policy_digest"] == undisturbed["policy_digest"]
    assert again.stderr.count("done before, reused") >= 5


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("step", "--set", "policy.folder=/nowhere"), 2, "no model folder at /nowhere"),
        (("step", "--set", "iterations=0"), 2, "iterations is 0; want at least 1"),
        (("step", "--preset", "huge"), 2, "no preset 'huge'; there are: tiny, tiny_long"),
        (("runs", "show", "none"), 2, "no run 'none'"),
        (("tasks", "show", "none"), 2, "see `longbreath tasks list`"),
        (("step", "--nonsense"), 2, "nonsense"),
    ],
)
def test_bad_input_is_said_with_the_mend_and_an_exit_code(words, code, said, tmp_path):
    done = run(tmp_path, *words)
    assert done.returncode == code
    assert said in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_second_process_on_the_same_run_is_told_who_holds_it(tmp_path):
    holder = subprocess.Popen(
        [LONGBREATH, *STEP, "--home", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not any(p.stat().st_size for p in (tmp_path / "store/locks").glob("*.lock")):
            assert time.monotonic() < deadline, "the first process took no lock"
            time.sleep(0.02)
        second = run(tmp_path, *STEP)
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()
    assert second.returncode == 4
    assert f"is held by process {holder.pid}" in second.stderr
