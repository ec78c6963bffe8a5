"""MLflow on a real SQLite store: again and again the same, and nothing twice."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from infra.digests import digest_folder
from infra.ledger import Ledger, Promotion
from infra.registry import Registry
from infra.traces import MAX_SPANS, SpanRecord, TraceRecord, log_traces
from infra.tracking import TrackedRun, Tracking, TrackingError

REPOSITORY = Path(__file__).parents[2]
PARAMS = {"training.lr": 3e-4, "seed": 0}
_names = itertools.count()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for the file, because making its tables takes seconds; each test has names of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def tracking(uri: str) -> Tracking:
    return Tracking(uri, experiment=f"experiment-{next(_names)}")


def _start(tracking: Tracking, key: str = "tiny-1") -> TrackedRun:
    return tracking.start(key, name=f"finetune {key}", params=PARAMS, tags={"code": "abc"})


def _reopened(tracking: Tracking) -> Tracking:
    return Tracking(tracking.uri, experiment=tracking.experiment)


def _rows(tracking: Tracking, run: TrackedRun, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in tracking.client.get_metric_history(run.mlflow_run_id, key)]


# Runs ----------------------------------------------------------------------------------------------------------------


def test_a_run_started_again_is_the_same_run_with_each_param_and_step_once(tracking: Tracking) -> None:
    first = _start(tracking)
    first.metrics({"loss": 2.0, "reward": 0.25}, step=0, at_s=100.0)
    first.finish("KILLED")
    again = _reopened(tracking)
    second = _start(again)
    assert second.mlflow_run_id == first.mlflow_run_id
    second.metrics({"loss": 2.0, "reward": 0.25}, step=0, at_s=200.0)
    second.metrics({"loss": 1.5, "reward": 0.5, "entropy": 0.1}, step=1, at_s=201.0)
    second.metrics({"loss": 1.5, "reward": 0.5, "entropy": 0.1}, step=1, at_s=202.0)
    second.finish()
    assert len(again.client.search_runs([again.experiment_id])) == 1
    assert _rows(again, second, "loss") == [(0, 2.0), (1, 1.5)]
    assert _rows(again, second, "reward") == [(0, 0.25), (1, 0.5)]
    assert _rows(again, second, "entropy") == [(1, 0.1)]
    data = again.client.get_run(second.mlflow_run_id)
    assert data.info.status == "FINISHED"
    assert data.data.params == {"training.lr": "0.0003", "seed": "0"}
    assert data.data.tags["code"] == "abc"


@pytest.mark.slow
def test_a_second_process_continues_the_run(tracking: Tracking) -> None:
    first = _start(tracking)
    first.metrics({"loss": 2.0}, step=0, at_s=100.0)
    script = f"""
from infra.tracking import Tracking
run = Tracking({tracking.uri!r}, experiment={tracking.experiment!r}).start(
    "tiny-1", name="again", params={PARAMS!r})
run.metrics({{"loss": 2.0}}, step=0, at_s=200.0)
run.metrics({{"loss": 1.0}}, step=1, at_s=200.0)
print(run.mlflow_run_id)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [first.mlflow_run_id]
    assert done.stderr == ""
    assert _rows(tracking, first, "loss") == [(0, 2.0), (1, 1.0)]


def test_other_params_for_the_same_run_are_refused_and_new_ones_are_added(tracking: Tracking) -> None:
    _start(tracking)
    with pytest.raises(TrackingError, match=r"was logged with seed = '0' and is now given '1' .*start another run"):
        tracking.start("tiny-1", name="x", params={"seed": 1})
    run = tracking.start("tiny-1", name="x", params={"seed": 0, "extra": "yes"})
    assert tracking.client.get_run(run.mlflow_run_id).data.params["extra"] == "yes"


def test_different_keys_are_different_runs(tracking: Tracking) -> None:
    assert _start(tracking, "a").mlflow_run_id != _start(tracking, "b").mlflow_run_id


def test_artifacts_are_logged_and_replaced(tracking: Tracking, tmp_path: Path) -> None:
    run = _start(tracking)
    report = tmp_path / "report.html"
    for text in ("first", "second"):
        report.write_text(text)
        run.artifact(report, "reports")
    run.artifact(tmp_path, "all")
    listed = [
        f.path for folder in ("reports", "all") for f in tracking.client.list_artifacts(run.mlflow_run_id, folder)
    ]
    assert listed == ["reports/report.html", "all/report.html"]
    back = tracking.client.download_artifacts(run.mlflow_run_id, "reports/report.html", str(tmp_path))
    assert Path(back).read_text() == "second"
    with pytest.raises(TrackingError, match="is not there; make it before logging it"):
        run.artifact(tmp_path / "nothing")


def test_addresses_and_names_that_cannot_be_used_say_so(uri: str, tmp_path: Path, tracking: Tracking) -> None:
    with pytest.raises(TrackingError, match=r"is relative .*want sqlite:////FOLDER/FILE"):
        Tracking("sqlite:///mlflow.db", experiment="x")
    (tmp_path / "no-database").write_text("this is no database, " * 100)
    with pytest.raises(TrackingError, match=r"Check the address"):
        Tracking(f"sqlite:///{tmp_path}/no-database", experiment="x")
    with pytest.raises(TrackingError, match=r"no-database/mlflow.db: connecting failed: .*File exists"):
        Tracking(f"sqlite:///{tmp_path}/no-database/mlflow.db", experiment="x")
    with pytest.raises(TrackingError, match=r"Check the address"):
        Tracking(f"{tmp_path}/mlruns", experiment="x")
    with pytest.raises(TrackingError, match="run key"):
        tracking.start("it's", name="x", params={})
    tracking.client.delete_experiment(tracking.experiment_id)
    with pytest.raises(TrackingError, match="is deleted; restore it with `mlflow experiments restore -x"):
        _reopened(tracking)


# Registry ------------------------------------------------------------------------------------------------------------


def _model_folder(parent: Path, content: str) -> Path:
    folder = parent / f"model-{content}"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(content)
    return folder


@pytest.fixture
def registry(uri: str, tmp_path: Path) -> Registry:
    return Registry(uri, f"agent-{next(_names)}", ledger=tmp_path / "promotions.jsonl")


@pytest.fixture
def versions(registry: Registry, tracking: Tracking, tmp_path: Path) -> tuple[int, ...]:
    """Three registered versions."""
    run = _start(tracking)
    folders = [_model_folder(tmp_path, name) for name in ("one", "two", "three")]
    return tuple(registry.register(run, folder, sha256=digest_folder(folder)) for folder in folders)


def test_the_same_model_registered_again_is_the_same_version(
    registry: Registry, tracking: Tracking, tmp_path: Path
) -> None:
    run, folder = _start(tracking), _model_folder(tmp_path, "one")
    digest = digest_folder(folder)
    tags = {"longbreath.git": "abc"}
    assert registry.version_of(digest) is None
    assert registry.register(run, folder, sha256=digest, tags=tags) == 1
    assert Registry(registry.uri, registry.model, ledger=tmp_path / "l").register(run, folder, sha256=digest) == 1
    assert registry.version_of(digest) == 1
    assert registry.tags(1)["longbreath.git"] == "abc"
    other = _model_folder(tmp_path, "two")
    assert registry.register(run, other, sha256=digest_folder(other)) == 2
    assert digest_folder(registry.download(1, tmp_path / "back")) == digest


def test_promotion_moves_the_champion_to_previous_and_rollback_exchanges_them(
    registry: Registry, versions: tuple[int, ...]
) -> None:
    assert versions == (1, 2, 3)
    registry.set_candidate(1)
    assert registry.aliases() == {"candidate": 1}
    registry.promote(1, reason="first", at_s=10.0)
    assert registry.aliases() == {"candidate": 1, "champion": 1}
    registry.promote(2, reason="+31 points", at_s=20.0)
    assert registry.aliases() == {"candidate": 1, "champion": 2, "previous": 1}
    registry.rollback(reason="alarm", at_s=30.0)
    assert registry.aliases() == {"candidate": 1, "champion": 1, "previous": 2}
    registry.rollback(reason="false alarm", at_s=40.0)
    assert registry.aliases() == {"candidate": 1, "champion": 2, "previous": 1}
    assert [(r.number, r.action, r.champion, r.previous, r.reason) for r in registry.history()] == [
        (1, "promote", 1, None, "first"),
        (2, "promote", 2, 1, "+31 points"),
        (3, "rollback", 1, 2, "alarm"),
        (4, "rollback", 2, 1, "false alarm"),
    ]


def test_promoting_the_champion_again_changes_nothing(registry: Registry, versions: tuple[int, ...]) -> None:
    registry.promote(1, reason="first", at_s=10.0)
    made = registry.promote(2, reason="second", at_s=20.0)
    assert registry.promote(2, reason="again", at_s=30.0) == made
    assert registry.aliases() == {"champion": 2, "previous": 1}
    assert len(registry.history()) == 2


def test_a_champion_set_by_hand_is_put_on_record(registry: Registry, versions: tuple[int, ...]) -> None:
    registry.promote(1, reason="first", at_s=10.0)
    registry._client.set_registered_model_alias(registry.model, "champion", "3")
    registry.promote(3, reason="confirmed", at_s=20.0)
    assert registry.aliases() == {"champion": 3}
    assert registry.history()[-1].champion == 3


def test_a_rollback_without_a_previous_says_so(registry: Registry, versions: tuple[int, ...]) -> None:
    registry.promote(1, reason="first", at_s=10.0)
    with pytest.raises(TrackingError, match=r"has no previous champion to go back to .*promote another version"):
        registry.rollback(reason="alarm", at_s=20.0)
    assert registry.aliases() == {"champion": 1}
    assert len(registry.history()) == 1


def _begun(action: str, champion: int, previous: int | None, number: int) -> Promotion:
    return Promotion(
        number=number,
        action="promote" if action == "promote" else "rollback",
        champion=champion,
        previous=previous,
        reason="cut short",
        at_s=15.0,
        state="begun",
    )


@pytest.mark.parametrize("moved", [(), ("previous",), ("previous", "champion")])
def test_a_move_cut_short_is_finished_by_the_next(
    moved: tuple[str, ...], registry: Registry, versions: tuple[int, ...], tmp_path: Path
) -> None:
    registry.promote(1, reason="first", at_s=10.0)
    Ledger(tmp_path / "promotions.jsonl").append(_begun("promote", 2, 1, number=2))
    for alias in moved:
        registry._client.set_registered_model_alias(registry.model, alias, {"previous": "1", "champion": "2"}[alias])
    registry.promote(2, reason="the same command again", at_s=20.0)
    assert registry.aliases() == {"champion": 2, "previous": 1}
    assert [(r.number, r.champion, r.reason) for r in registry.history()] == [(1, 1, "first"), (2, 2, "cut short")]
    registry.promote(3, reason="third", at_s=30.0)
    assert registry.aliases() == {"champion": 3, "previous": 2}


def test_versions_and_folders_that_are_none_are_refused(
    registry: Registry, versions: tuple[int, ...], tracking: Tracking, tmp_path: Path
) -> None:
    with pytest.raises(TrackingError, match=r"has no version 9; there are \[1, 2, 3\]"):
        registry.promote(9, reason="x", at_s=10.0)
    with pytest.raises(TrackingError, match=r"has no version 9"):
        registry.set_candidate(9)
    with pytest.raises(TrackingError, match=r"has no config.json; want a model folder"):
        registry.register(_start(tracking), tmp_path, sha256="a" * 64)
    assert registry.history() == []


def test_a_model_that_was_never_registered_has_no_aliases(registry: Registry) -> None:
    assert registry.aliases() == {}
    with pytest.raises(TrackingError, match="has no previous champion"):
        registry.rollback(reason="x", at_s=1.0)


def test_a_damaged_ledger_is_named(registry: Registry, versions: tuple[int, ...], tmp_path: Path) -> None:
    registry.promote(1, reason="first", at_s=10.0)
    path = tmp_path / "promotions.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(TrackingError, match=r"ledger is damaged: .*promotions.jsonl:2 is no JSON.*restore it"):
        registry.promote(2, reason="x", at_s=20.0)


@pytest.mark.slow
def test_a_registered_model_loads_in_a_fresh_process_and_generates(
    registry: Registry, tracking: Tracking, tmp_path: Path
) -> None:
    make = f"""
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
torch.manual_seed(0)
vocabulary = {{word: i for i, word in enumerate(["<s>", "</s>", "<unk>", "ls", "cat", "echo"])}}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
config = LlamaConfig(vocab_size=6, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=2, bos_token_id=0, eos_token_id=1)
LlamaForCausalLM(config).save_pretrained({str(tmp_path / "made")!r})
fast.save_pretrained({str(tmp_path / "made")!r})
"""
    use = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
batch = tokenizer("ls cat", return_tensors="pt", return_token_type_ids=False)
ids = model.generate(**batch, max_new_tokens=5, min_new_tokens=5, do_sample=False)
print(ids.tolist()[0])
"""
    subprocess.run([sys.executable, "-c", make], check=True, timeout=280)
    digest = digest_folder(tmp_path / "made")
    version = registry.register(_start(tracking), tmp_path / "made", sha256=digest)
    registry.promote(version, reason="only one", at_s=1.0)
    folder = registry.download(registry.aliases()["champion"], tmp_path / "back")
    done = subprocess.run(
        [sys.executable, "-c", use, str(folder)], capture_output=True, text=True, timeout=280, check=True
    )
    assert done.stdout.startswith("[3, 4, ")
    assert done.stdout.count(",") == 6


# Traces --------------------------------------------------------------------------------------------------------------


def _trace(key: str, num_spans: int) -> TraceRecord:
    spans = tuple(
        SpanRecord(
            name=f"turn {i}",
            kind="TOOL",
            start_s=1000.0 + i,
            duration_s=0.5,
            inputs={"command": f"ls {i}"},
            outputs={"observation": "file\n", "exit_code": 0},
        )
        for i in range(num_spans)
    )
    return TraceRecord(
        key=key,
        name=f"rollout {key}",
        start_s=1000.0,
        duration_s=float(num_spans),
        inputs={"task": "t1"},
        outputs={"reward": 1.0},
        spans=spans,
        tags={"longbreath.status": "completed"},
    )


def test_trajectories_become_traces_once_with_their_own_times(tracking: Tracking) -> None:
    run = _start(tracking)
    assert log_traces(run, [_trace("r1", 3), _trace("r2", 100)]) == 2
    assert log_traces(_start(_reopened(tracking)), [_trace("r1", 3), _trace("r2", 100), _trace("r3", 1)]) == 1
    found = tracking.client.search_traces(locations=[tracking.experiment_id], run_id=run.mlflow_run_id)
    by_key = {trace.info.tags["longbreath.rollout_id"]: trace for trace in found}
    assert sorted(by_key) == ["r1", "r2", "r3"]
    root, first, *_ = by_key["r1"].data.spans
    assert (root.start_time_ns, root.end_time_ns) == (1_000_000_000_000, 1_003_000_000_000)
    assert (first.name, first.inputs, first.outputs["exit_code"]) == ("turn 0", {"command": "ls 0"}, 0)
    assert (first.start_time_ns, first.end_time_ns) == (1_000_000_000_000, 1_000_500_000_000)
    assert by_key["r1"].info.tags["longbreath.status"] == "completed"
    long = by_key["r2"].data.spans
    assert len(long) == MAX_SPANS + 1
    assert long[0].attributes["spans_left_out"] == 40
    assert {"turn 0", "turn 29", "turn 70", "turn 99"} <= {span.name for span in long}


def test_more_than_ten_traces_a_run_are_refused(tracking: Tracking) -> None:
    run = _start(tracking)
    log_traces(run, [_trace(f"r{i}", 1) for i in range(9)])
    with pytest.raises(TrackingError, match="has 9 traces and got 2 more; want at most 10 in all"):
        log_traces(run, [_trace("s1", 1), _trace("s2", 1)])
