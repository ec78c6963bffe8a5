"""The data-quality suite: what is sound passes; each way to be unsound is named with its row."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fake_records import a_chain, a_rollout, a_turn, rendered, sampled

from environments.types import (
    GateResult,
    Group,
    Judged,
    Trajectory,
    Unjudged,
    Verdict,
)
from tasks.quality_checks import QualityError, check_trajectories, refuse, trajectory_rows, validate_rows


def rollout(group: str, index: int) -> Trajectory:
    rollout_id = f"{group}-{index}"
    said = sampled(7, 8, 9, logprobs=(-0.1, -0.2, -0.3), version=3)
    chain = a_chain(rollout_id, rendered(5, 6), said)
    return a_rollout(rollout_id, group_id=group, index=index, chains=(chain,), turns=(a_turn(),), version=3)


def judged(trajectory: Trajectory, reward: float) -> Judged:
    gates = (GateResult(name="execution", outcome="passed" if reward else "failed"),)
    verdict = Verdict(gates=gates, scores=(), reward=reward, passed=bool(reward))
    return Judged(rollout_id=trajectory.rollout_id, group_id=trajectory.group_id, task_id="t", result=verdict)


def group_of(*members: Trajectory) -> Group:
    return Group(
        group_id=members[0].group_id,
        task_id="t",
        task_digest="d",
        requested_size=len(members),
        members=members,
    )


BATCH = [rollout("g", i) for i in range(4)]
VERDICTS = [judged(t, float(t.index % 2)) for t in BATCH]


def test_a_sound_batch_passes_and_its_data_docs_can_be_opened(tmp_path: Path) -> None:
    report = check_trajectories([group_of(*BATCH)], VERDICTS, newest_version=3, docs=tmp_path)
    assert (report.passed, report.num_rows, report.num_checks) == (True, 4, 22)
    assert "trajectories" in (tmp_path / "index.html").read_text()


BROKEN: dict[str, dict[str, Any]] = {
    "a status that trains": {"status": "infra_fault"},
    "one verdict": {"num_verdicts": 2},
    "the verdict is of the same task": {"judged_task_id": "other"},
    "a verdict has gates": {"num_gates": 0},
    "a reward": {"reward": None},
    "a reward in [0, 1]": {"reward": 1.5},
    "no reward past a failed gate": {"paid_despite_gate": True},
    "one that acted or handed in has sampled tokens": {"acted_unrecorded": True},
    "a log-probability for every sampled id": {"num_logprobs": 2},
    "log-probabilities are finite": {"num_bad_logprobs": 1},
    "log-probabilities are at most 0": {"logprob_max": 0.5},
    "ids are not negative": {"id_min": -1},
    "no more tokens trained than were sampled": {"usage_completion_tokens": 2},
    "chains are the rollout's own": {"foreign_chains": 1},
    "as many turns as were counted": {"usage_turns": 7},
    "policy versions in order": {
        "version_low": 5,
        "version_high": 4,
        "segment_version_min": 5,
        "segment_version_max": 4,
    },
    "segments are of versions the rollout names (oldest)": {"segment_version_min": 2},
    "segments are of versions the rollout names (newest)": {"version_low": 2, "version_high": 2},
    "no policy version from the future": {"version_high": 9},
    "a group has no more members than were asked for": {"group_excess": 1},
}


def test_every_way_to_be_unsound_is_named_with_its_own_row_and_no_other(tmp_path: Path) -> None:
    many = [rollout("g", i) for i in range(len(BROKEN) + 2)]
    rows = trajectory_rows([group_of(*many)], [judged(t, float(t.index % 2)) for t in many])
    rows["reward"] = rows["reward"].astype(object)
    for at, change in enumerate(BROKEN.values()):
        for column, value in change.items():
            rows.loc[at, column] = value
    rows["reward"] = rows["reward"].astype(float)
    rows.loc[len(rows) - 1, "rollout_id"] = "g-21"
    rows.loc[len(rows) - 2, "rollout_id"] = "g-21"
    report = validate_rows(rows, newest_version=5, docs=tmp_path)
    found = {f.check: f.rollout_ids for f in report.failures}
    expected = {check: (f"g-{at}",) for at, check in enumerate(BROKEN)}
    assert found == {**expected, "a rollout stands once": ("g-21",)}
    with pytest.raises(QualityError) as error:
        refuse(report, tmp_path)
    assert "21 of 22 data checks failed; nothing was trained on." in str(error.value)
    assert "- a reward in [0, 1]: 1 of 22 rows (g-5)" in str(error.value)
    assert "- a rollout stands once: 2 of 22 rows (g-21, ...)" in str(error.value)
    assert str(tmp_path / "index.html") in str(error.value)


def test_a_batch_of_nothing_fails_closed(tmp_path: Path) -> None:
    with pytest.raises(QualityError, match="there is at least one trajectory"):
        check_trajectories([], [], newest_version=3, docs=tmp_path)


def test_a_member_whose_grading_was_our_fault_is_left_out_and_one_without_a_verdict_is_not(tmp_path: Path) -> None:
    lost = dataclasses.replace(VERDICTS[0], result=Unjudged(reason="the grading box failed"))
    report = check_trajectories([group_of(*BATCH)], [lost, *VERDICTS[1:]], newest_version=3, docs=tmp_path / "a")
    assert (report.passed, report.num_rows) == (True, 3)
    with pytest.raises(QualityError, match=r"- one verdict: 1 of 4 rows \(g-0\)"):
        check_trajectories([group_of(*BATCH)], VERDICTS[1:], newest_version=3, docs=tmp_path / "b")


def test_a_rollout_that_ended_before_its_first_word_is_data_as_long_as_it_did_nothing(tmp_path: Path) -> None:
    silent = a_rollout("g-9", index=9, status="budget_exhausted", fault="context", final_payload=None, version=3)
    acted = dataclasses.replace(silent, turns=(a_turn(),), usage=dataclasses.replace(silent.usage, turns=1))
    for last, checks in ((silent, []), (acted, ["one that acted or handed in has sampled tokens"])):
        members = (*BATCH, last)
        verdicts = [*VERDICTS, judged(last, 0.0)]
        rows = trajectory_rows([group_of(*members)], verdicts)
        report = validate_rows(rows, newest_version=3, docs=tmp_path)
        assert [f.check for f in report.failures] == checks
