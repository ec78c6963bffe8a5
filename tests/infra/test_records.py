"""Every record type reads back equal through JSON and Parquet, and nothing else is read."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.types import (
    CallRecord,
    Chain,
    Exclusion,
    GateResult,
    Group,
    Judged,
    Limits,
    Score,
    Segment,
    TaskPool,
    TaskSpec,
    Trajectory,
    Turn,
    Unjudged,
    Usage,
    Verdict,
)
from infra.digests import digest_of
from infra.engines.base import Sampling
from infra.records import (
    RecordFormatError,
    from_json,
    read_parquet,
    to_json,
    write_parquet,
)
from training.samples import Sample

# The worked examples -----------------------------------------------------------------------------------------------

USAGE = Usage(turns=2, calls=3, prompt_tokens=60, completion_tokens=7, wall_s=1.5, sandbox_s=0.02)
RENDERED = Segment(ids=(1, 2, 3), logprobs=(), trainable=False, call_id="k1", policy_version=-1)
SAMPLED = Segment(ids=(7, 8), logprobs=(-0.1, -2.302585), trainable=True, call_id="k1", policy_version=4)


def _chain(chain_id: str, role: Literal["main", "sub_agent", "side"], parent: str | None, cause: Any) -> Chain:
    return Chain(
        chain_id=chain_id,
        rollout_id="r1",
        agent_id="helper" if role == "sub_agent" else "main",
        role=role,
        parent_chain_id=parent,
        fork_cause=cause,
        segments=(RENDERED, SAMPLED),
    )


MULTI_CHAIN = Trajectory(
    rollout_id="r1",
    group_id="g1",
    index=0,
    attempt=0,
    task_id="t1",
    status="completed",
    fault="",
    chains=(
        _chain("c0", "main", None, "root"),
        _chain("c1", "main", "c0", "compacted"),
        _chain("c2", "sub_agent", "c0", "sub_agent"),
        _chain("c3", "side", None, "side"),
    ),
    turns=(
        Turn(
            index=0,
            call_id="k1",
            tool_call_id="u1",
            agent_id="main",
            source="sandbox",
            thought="Wait, the port is in two files.",
            action="grep -rn 8080 /srv",
            observation="conf/app.ini:3:port = 8080\n\x00\u2028é",
            exit_code=0,
            error_class=None,
            duration_s=0.004,
        ),
        Turn(
            index=1,
            call_id="k2",
            tool_call_id="",
            agent_id="helper",
            source="wire",
            thought="",
            action="{not json",
            observation="",
            exit_code=None,
            error_class="parse",
            duration_s=0.0,
        ),
    ),
    final_payload=None,
    usage=USAGE,
    policy_versions=(4, 5),
    final_state_uri="objects/abc",
)
REFILLED = dataclasses.replace(MULTI_CHAIN, rollout_id="r1b", index=3, attempt=1, final_payload='{"done": true}')
LOST = dataclasses.replace(
    MULTI_CHAIN, rollout_id="r1a", index=3, attempt=0, status="infra_fault", fault="engine died", chains=(), turns=()
)
REFILL_GROUP = Group(
    group_id="g1",
    task_id="t1",
    task_digest="d" * 64,
    requested_size=2,
    members=(MULTI_CHAIN, REFILLED),
    excluded=(Exclusion(rollout_id="r1a", reason="engine died"),),
)


def _call(call_id: str, parent: str | None, role: Any, cause: Any, started_at: float) -> CallRecord:
    return CallRecord(
        call_id=call_id,
        rollout_id="r1",
        agent_id="main",
        role=role,
        parent_call_id=parent,
        cause=cause,
        wire="chat",
        prompt_tail_ids=(5, 6),
        completion_ids=(9,),
        completion_logprobs=(-0.25,),
        delivered_count=1,
        state="complete",
        policy_version=2,
        sampling=Sampling(temperature=0.7, stop_token_ids=(2,), seed=11),
        finish_reason="stop",
        tokenizer_digest="e" * 64,
        started_at=started_at,
        latency_s=0.5,
    )


OVERLAPPING_CALLS = (
    _call("a", None, "main", "root", 10.0),
    _call("s", None, "side", "side", 10.1),
    _call("b", "a", "main", "continuation", 10.6),
)
TASK = TaskSpec(
    task_id="t1",
    suite="service_repair",
    instruction="Make ./check pass.",
    seed=7,
    horizon=3,
    limits=Limits(max_turns=8, max_tokens=600),
    tags=("fault:wrong_port",),
)
EXAMPLES: list[Any] = [
    MULTI_CHAIN,
    LOST,
    REFILL_GROUP,
    *OVERLAPPING_CALLS,
    TASK,
    TaskPool(name="p", version=1, split="held_out", tasks=(TASK, dataclasses.replace(TASK, task_id="t2", tags=()))),
    TaskPool(name="empty", version=2, split="train", tasks=()),
    Judged(rollout_id="r1a", group_id="g1", task_id="t1", result=Unjudged(reason="engine died")),
    Judged(
        rollout_id="r1",
        group_id="g1",
        task_id="t1",
        result=Verdict(
            gates=(GateResult(name="format", outcome="passed"), GateResult(name="execution", outcome="passed")),
            scores=(Score(name="speed", value=0.5),),
            reward=1.0,
            passed=True,
        ),
    ),
]


def _round_trips(records: list[Any], folder: Path) -> None:
    cls, path = type(records[0]), folder / "records.parquet"
    assert [from_json(cls, to_json(r)) for r in records] == records
    assert write_parquet(records, path) == len(records)
    assert read_parquet(cls, path) == records


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda r: type(r).__name__)
def test_the_worked_examples_read_back_equal(record: Any, tmp_path: Path) -> None:
    _round_trips([record], tmp_path)


def test_mixed_rows_of_a_union_read_back_in_order(tmp_path: Path) -> None:
    judged = [r for r in EXAMPLES if isinstance(r, Judged)]
    _round_trips([judged[0], judged[1], judged[0], judged[1], judged[1]], tmp_path)


# The property ------------------------------------------------------------------------------------------------------

_text = st.text(max_size=12)
_int = st.integers(-(2**63), 2**63 - 1)
_count = st.integers(0, 2**40)
_seconds = st.floats(0, 1e9)
_logprob = st.floats(-1e6, 0)
_name = st.text(min_size=1, max_size=8)
_limits = st.builds(
    Limits, max_turns=st.integers(1, 99), max_tokens=st.integers(1, 9999), wall_time_s=st.floats(0.1, 1e6)
)
_task = st.builds(TaskSpec, task_id=_name, seed=_int, horizon=st.integers(1, 99), limits=_limits, suite=_text)
_pool = st.builds(TaskPool, tasks=st.lists(_task, max_size=3, unique_by=lambda t: t.task_id).map(tuple), version=_int)
_tokens = st.lists(st.tuples(_count, _logprob), max_size=6)
_sampled = st.builds(
    lambda pairs, **rest: Segment(
        ids=tuple(i for i, _ in pairs), logprobs=tuple(x for _, x in pairs), trainable=True, **rest
    ),
    _tokens,
    call_id=_text,
    policy_version=_count,
)
_rendered = st.builds(
    Segment, logprobs=st.just(()), trainable=st.just(False), policy_version=st.just(-1), ids=st.just((4, 2))
)
_chains = st.builds(Chain, segments=st.lists(_sampled | _rendered, max_size=3).map(tuple))
_turn = st.builds(Turn, index=_count, exit_code=st.none() | st.integers(0, 255), duration_s=_seconds)
_usage = st.builds(
    Usage,
    turns=_count,
    calls=_count,
    prompt_tokens=_count,
    completion_tokens=_count,
    wall_s=_seconds,
    sandbox_s=_seconds,
)
_trajectory = st.builds(
    Trajectory,
    fault=_name,
    index=_count,
    attempt=_count,
    chains=st.lists(_chains, max_size=2).map(tuple),
    turns=st.lists(_turn, max_size=2).map(tuple),
    usage=_usage,
    policy_versions=st.tuples(st.integers(-1, 5), st.integers(5, 9)),
)
_member = _trajectory.filter(lambda t: t.status != "infra_fault")
_group = st.builds(
    lambda members, **rest: Group(
        group_id="g",
        members=tuple(dataclasses.replace(m, group_id="g", index=i) for i, m in enumerate(members)),
        **rest,
    ),
    st.lists(_member, max_size=3),
    task_id=_text,
    task_digest=_text,
    requested_size=_count,
    excluded=st.lists(st.builds(Exclusion), max_size=2).map(tuple),
)
_sampling = st.builds(
    Sampling,
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(1, 99) | st.just(-1),
    max_tokens=st.integers(1, 99),
    stop_token_ids=st.lists(_count, max_size=2).map(tuple),
    seed=_int,
)
_call_record = st.builds(
    lambda pairs, delivered, **rest: CallRecord(
        completion_ids=tuple(i for i, _ in pairs),
        completion_logprobs=tuple(x for _, x in pairs),
        delivered_count=min(delivered, len(pairs)),
        parent_call_id=None,
        **rest,
    ),
    _tokens,
    st.integers(0, 6),
    **dict.fromkeys(("call_id", "rollout_id", "agent_id", "tokenizer_digest"), _text),
    role=st.sampled_from(["main", "sub_agent", "side"]),
    cause=st.sampled_from(["root", "side", "template", "compacted"]),
    wire=st.sampled_from(["chat", "responses", "messages"]),
    prompt_tail_ids=st.lists(_count, max_size=4).map(tuple),
    state=st.sampled_from(["complete", "cancelled", "broken"]),
    policy_version=_int,
    sampling=_sampling,
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
    started_at=_seconds,
    latency_s=_seconds,
)
_verdict = st.builds(
    lambda gates, scores, reward, passed: (
        Verdict(gates=gates, scores=(), reward=0.0, passed=False)
        if any(g.outcome == "failed" for g in gates)
        else Verdict(gates=gates, scores=scores, reward=reward, passed=passed)
    ),
    st.lists(st.builds(GateResult), max_size=3).map(tuple),
    st.lists(st.builds(Score, value=st.floats(0, 1)), max_size=2).map(tuple),
    st.floats(0, 1),
    st.booleans(),
)
_judged = st.builds(Judged, result=_verdict | st.builds(Unjudged))


@pytest.mark.parametrize(
    "strategy",
    [_limits, _task, _pool, _call_record, _sampled, _chains, _turn, _usage, _trajectory, _group, _verdict, _judged],
    ids=[
        "Limits",
        "TaskSpec",
        "TaskPool",
        "CallRecord",
        "Segment",
        "Chain",
        "Turn",
        "Usage",
        "Trajectory",
        "Group",
        "Verdict",
        "Judged",
    ],
)
def test_every_record_type_reads_back_equal(strategy: Any, tmp_path: Path) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(strategy, min_size=1, max_size=3))
    def check(records: list[Any]) -> None:
        _round_trips(records, tmp_path)
        assert [digest_of(from_json(type(r), to_json(r))) for r in records] == [digest_of(r) for r in records]

    check()


def test_an_int_in_a_float_field_reads_back_equal_with_the_same_digest(tmp_path: Path) -> None:
    limits = Limits(max_turns=1, max_tokens=2, wall_time_s=60)
    write_parquet([limits], tmp_path / "l.parquet")
    for back in (from_json(Limits, to_json(limits)), *read_parquet(Limits, tmp_path / "l.parquet")):
        assert back == limits
        assert digest_of(back) == digest_of(limits)


# Arrays ------------------------------------------------------------------------------------------------------------


def _sample(proximal: npt.NDArray[np.float32] | None) -> Sample:
    return Sample(
        token_ids=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        behaviour_logprobs=np.array([0, -0.1, -1e-7], np.float32),
        advantages=np.array([0, 1.5, 1.5], np.float32),
        policy_versions=np.array([-1, 3, 3], np.int32),
        weight=0.5,
        temperature=1.0,
        chain_id="c0",
        rollout_id="r1",
        group_id="g1",
        proximal_logprobs=proximal,
    )


def _fields(sample: Sample) -> list[Any]:
    values = [getattr(sample, f.name) for f in dataclasses.fields(sample)]
    return [(v.dtype.name, v.tolist()) if isinstance(v, np.ndarray) else v for v in values]


def test_samples_keep_their_arrays_bit_for_bit_and_their_dtypes(tmp_path: Path) -> None:
    samples = [_sample(None), _sample(np.array([0, -0.3, -0.4], np.float32)), _sample(None)]
    write_parquet(samples, tmp_path / "s.parquet")
    back = read_parquet(Sample, tmp_path / "s.parquet")
    assert [_fields(s) for s in back] == [_fields(s) for s in samples]
    assert [_fields(from_json(Sample, to_json(s))) for s in samples] == [_fields(s) for s in samples]
    back[0].token_ids[0] = 99  # owns its memory: its neighbours do not change
    assert back[1].token_ids.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("array", "complaint"),
    [
        (np.array([5, 6, 7], np.int64), r"Sample.token_ids is int64 of shape \(3,\); want one dimension of int32"),
        (np.array([[5], [6], [7]], np.int32), r"Sample.token_ids is int32 of shape \(3, 1\)"),
        ([5, 6, 7], r"Sample.token_ids is \[5, 6, 7\] \(list\); want ndarray"),
    ],
)
def test_an_array_of_another_dtype_or_shape_is_refused(array: Any, complaint: str, tmp_path: Path) -> None:
    sample = dataclasses.replace(_sample(None), token_ids=array)
    with pytest.raises(RecordFormatError, match=complaint):
        write_parquet([sample], tmp_path / "s.parquet")
    with pytest.raises(RecordFormatError, match=complaint):
        to_json(sample)


def test_a_thousand_trajectories_of_two_thousand_tokens_take_seconds(tmp_path: Path) -> None:
    ids = tuple(range(2000))
    segment = dataclasses.replace(SAMPLED, ids=ids, logprobs=tuple(-i / 7 for i in ids))
    chain = dataclasses.replace(MULTI_CHAIN.chains[0], segments=(RENDERED, segment))
    trajectories = [dataclasses.replace(MULTI_CHAIN, rollout_id=f"r{i}", chains=(chain,)) for i in range(1000)]
    started = time.process_time()
    write_parquet(trajectories, tmp_path / "t.parquet")
    assert read_parquet(Trajectory, tmp_path / "t.parquet") == trajectories
    assert time.process_time() - started < 15
