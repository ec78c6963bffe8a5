"""Looking back at a run: its artifacts in order, its trajectories, its choices and why it made them."""

from __future__ import annotations

import json

import pytest
from flows_fakes import CONFIG, a_run, stored

from environments.rollout import GroupRequest
from flows.cli.curriculum import show
from flows.cli.options import Common
from flows.history import RunNotes, find_trajectory, trajectories_of
from flows.home import Home, open_desk
from flows.overrides import ConfigError
from infra import records
from tasks.pools import make_pools
from tasks.progress import Silent

RUN = CONFIG.run_id


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    a_run(root)
    return Home(root)


def test_a_runs_artifacts_are_told_by_kind_in_order_each_once(home):
    notes = RunNotes(home, RUN)
    stages = home.run(RUN) / "stages.jsonl"
    once = stages.read_bytes()
    stages.write_bytes(once + once)
    try:
        kinds = {kind: len(notes.manifests(kind)) for kind in ("selection", "rollouts", "judged", "curriculum")}
        assert kinds == {"selection": 2, "rollouts": 2, "judged": 2, "curriculum": 2}
    finally:
        stages.write_bytes(once)
    first, second = notes.manifests("curriculum")
    assert first.key in second.parents
    assert notes.result() is None
    assert notes.manifests("policy") == []


def test_a_run_that_is_not_there_is_refused_with_those_that_are(home):
    with pytest.raises(ConfigError, match=f"no run 'other' below .*; there are: {RUN}"):
        RunNotes(home, "other")


def test_trajectories_are_found_with_their_verdicts(home):
    rows = trajectories_of(home, RUN)
    assert len(rows) == len({t.rollout_id for t, _ in rows}) > 0
    assert all(t.rollout_id == j.rollout_id and j.passed == (t.final_payload == "done") for t, j in rows)
    trajectory, judged = find_trajectory(home, RUN, rows[0][0].rollout_id)
    assert (trajectory, judged) == rows[0]
    with pytest.raises(ConfigError, match="has no rollout 'none'"):
        find_trajectory(home, RUN, "none")


def test_two_benchmarks_hold_rollouts_of_one_id_and_each_keeps_its_own_verdict(tmp_path):
    a_run(tmp_path, iterations=0)
    home = Home(tmp_path)
    with open_desk(home, CONFIG, Silent()) as desk:
        pool = make_pools(desk.workshop.suite(CONFIG.pool.suite), CONFIG.pool).held_out
        request = GroupRequest(group_id="bench-t", task=pool.tasks[0], size=1)
        made = [m for version, passed in ((0, False), (2, True)) for m in stored(desk, request, version, passed=passed)]
    (home.run(RUN) / "stages.jsonl").write_bytes(b"".join(records.to_json(m) + b"\n" for m in made))
    seen = [(t.rollout_id, t.policy_versions[1], j.passed) for t, j in trajectories_of(home, RUN)]
    assert seen == [("bench-t-0", 0, False), ("bench-t-0", 2, True)]
    assert find_trajectory(home, RUN, "bench-t-0")[1].passed
    assert not find_trajectory(home, RUN, "bench-t-0", policy_version=0)[1].passed
    with pytest.raises(ConfigError, match="has no rollout 'bench-t-0' of policy 1"):
        find_trajectory(home, RUN, "bench-t-0", policy_version=1)


def told(capsys, home, **words) -> tuple[dict, str]:
    assert show(RUN, common=Common(home=home.root, json=True), **words) == 0
    said = capsys.readouterr()
    return json.loads(said.out.splitlines()[-1]), said.err


def test_a_runs_curriculum_is_told_selection_by_selection(home, capsys):
    answer, said = told(capsys, home)
    assert (answer["strategy"], answer["policy_version"]) == ("posterior", 2)
    assert [s["policy_version"] for s in answer["selections"]] == [0, 1]
    assert all(0 < s["rollouts"] <= 16 for s in answer["selections"])
    assert sum(answer["selections"][0]["tally"].values()) == 12
    assert len(answer["tasks"]) == 12
    assert sum(row["rollouts"] for row in answer["tasks"]) == sum(s["rollouts"] for s in answer["selections"])
    assert sum(row["chosen"] for row in answer["tasks"]) == sum(s["groups"] for s in answer["selections"])
    assert all(row["low"] < row["mean"] < row["high"] for row in answer["tasks"])
    assert (answer["settings"]["recheck_every"], answer["settings"]["large_group"]) == (20, None)
    assert "recheck_every 20" in " ".join(said.split())
    assert "selections" in said
    assert "the newest selection" in said


def test_a_task_is_told_with_its_posterior_evidence_and_decisions(home, capsys):
    whole, _ = told(capsys, home)
    row = max(whole["tasks"], key=lambda r: r["rollouts"])
    answer, said = told(capsys, home, task=row["task_id"])
    assert answer["posterior"] == {k: v for k, v in row.items() if k != "chosen"}
    assert sum(e["rollouts"] for e in answer["evidence"]) == row["rollouts"]
    assert sum(e["passed"] for e in answer["evidence"]) == row["passed"] == row["rollouts"] // 2
    assert len(answer["decisions"]) == row["chosen"]
    assert all(d["why"] for d in answer["decisions"])
    assert f"evidence: {row['rollouts']} rollouts" in " ".join(answer["explanation"])
    assert row["task_id"] in said


def test_a_task_that_is_not_in_the_pool_and_a_run_without_evidence_are_said(home, tmp_path, capsys):
    assert show(RUN, task="none", common=Common(home=home.root)) == 2
    assert "task 'none' is not in the pool of 12 tasks" in capsys.readouterr().err
    a_run(tmp_path, iterations=0)
    assert show(RUN, common=Common(home=tmp_path)) == 2
    assert "has folded no evidence yet" in capsys.readouterr().err
