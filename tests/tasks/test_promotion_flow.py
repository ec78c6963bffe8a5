"""Candidate, champion, previous: a run's verdict moves them on a real MLflow, and each move can be taken back."""

from __future__ import annotations

import json

from tasks_fakes import a_pool, desk_at, model_folder

from infra.digests import digest_folder
from tasks.benchmark import BenchmarkConfig
from tasks.policies import Policy, adopt
from tasks.registry import (
    TrackingConfig,
    champion_at,
    fetch,
    judge_candidate,
    open_registry,
    rival_of,
    settings_of,
    settle,
    start_run,
)
from tasks.stage import perform
from training.evaluation.promotion import Measurement

POOL = a_pool(*(f"t{n:02d}" for n in range(30)))
CONFIG = BenchmarkConfig(bands=(12,))


def measured(version: int, solved: int) -> Measurement:
    """`solved` of the 30 tasks passed."""
    return Measurement(
        policy_version=version,
        weights_digest=f"{version}" * 64,
        evaluation_digest="e" * 64,
        rewards={t.task_id: [float(i < solved)] for i, t in enumerate(POOL.tasks)},
        num_excluded=0,
    )


def test_a_verdict_promotes_or_refuses_and_a_champion_can_be_taken_back(tmp_path):
    uri, tracking = f"sqlite:///{tmp_path}/mlflow.db", TrackingConfig()
    desk, registry = desk_at(tmp_path), open_registry(f"sqlite:///{tmp_path}/mlflow.db", tracking, tmp_path)
    run = start_run(desk, tracking, uri, params=dict(settings_of(CONFIG)))
    assert start_run(desk, tracking, uri, params=dict(settings_of(CONFIG))).mlflow_run_id == run.mlflow_run_id

    def settled(weights: bytes, version: int, verdict) -> int:
        given = model_folder(tmp_path / weights.decode(), weights=weights)
        policy = Policy(manifest=perform(desk, adopt(given, digest=None)), version=version)
        return settle(desk, run, registry, policy, verdict, tmp_path)

    def settled_again(weights: bytes, version: int, verdict) -> int:
        policy = Policy(manifest=perform(desk, adopt(tmp_path / weights.decode(), digest=None)), version=version)
        return settle(desk, run, registry, policy, verdict, tmp_path)

    better = judge_candidate(measured(1, 25), measured(0, 2), CONFIG, POOL)
    assert better.promote, better.reasons
    first = settled(b"better", 1, better)
    assert registry.aliases() == {"candidate": first, "champion": first}
    assert json.loads((tmp_path / "verdict.json").read_text())["promote"] is True

    same = judge_candidate(measured(2, 3), measured(1, 2), CONFIG, POOL)
    assert not same.promote
    second = settled(b"hardly", 2, same)
    assert registry.aliases() == {"candidate": second, "champion": first}
    assert registry.tags(second)["longbreath.verdict"] == "refuse"
    assert registry.tags(second)["longbreath.policy_version"] == "2"
    assert registry.tags(first)["longbreath.run_id"] == "test-1"

    registry.promote(second, reason="forced: by hand", at_s=1.0)
    assert registry.aliases() == {"candidate": second, "champion": second, "previous": first}
    registry.rollback(reason="it was worse", at_s=2.0)
    assert registry.aliases() == {"candidate": second, "champion": first, "previous": second}
    assert [(m.action, m.champion) for m in registry.history()] == [
        ("promote", first),
        ("promote", second),
        ("rollback", first),
    ]

    assert settled_again(b"better", 1, better) == first, "a retry makes no second version"
    assert settled_again(b"hardly", 2, better) == second
    assert registry.aliases()["champion"] == first, "a repeated run does not undo the rollback"
    assert digest_folder(registry.download(first, tmp_path / "back")) == digest_folder(tmp_path / "better")


def test_a_candidate_must_beat_the_champion_or_whose_place_it_took(tmp_path):
    uri, tracking = f"sqlite:///{tmp_path}/mlflow.db", TrackingConfig()
    desk, registry = desk_at(tmp_path), open_registry(uri, tracking, tmp_path)
    run = start_run(desk, tracking, uri, params={})
    folders = [model_folder(tmp_path / name, weights=name.encode()) for name in ("one", "two", "three")]
    digests = [digest_folder(folder) for folder in folders]
    assert rival_of(registry, digests[0]) is None
    assert champion_at(registry, 9.0, tmp_path / "champions") is None

    tags = {"longbreath.policy_version": "12"}
    one, two = (registry.register(run, f, sha256=d, tags=tags) for f, d in zip(folders[:2], digests[:2], strict=True))
    registry.promote(one, reason="the first", at_s=1.0)
    registry.promote(two, reason="better", at_s=2.0)
    assert rival_of(registry, digests[2]) == two
    assert rival_of(registry, digests[1]) == one, "a run that is repeated is measured as it was the first time"
    assert rival_of(registry, digests[0]) == two

    was = champion_at(registry, 1.5, tmp_path / "champions")
    assert (was.version, was.policy_version, was.sha256) == (one, 12, digests[0])
    assert digest_folder(was.folder) == digests[0]
    assert fetch(registry, one, tmp_path / "champions") == was
    assert champion_at(registry, 2.5, tmp_path / "champions").version == two
