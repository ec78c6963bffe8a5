"""The log keeps what was written, says what was torn or damaged, and its replay is what `close` gave."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polar_fakes import STOP, ScriptedEngine, call_text, in_turn, recorder_for, talking

from environments.polar.errors import LogDamaged, LogFailed
from environments.polar.log import LogWriter, RolloutLog
from environments.polar.log_format import decode_payload, encode_entry, read_log
from environments.polar.logged import read_rollouts
from environments.polar.recorder import PolarRecorder
from environments.polar.recording import UNNUMBERED_GAP, build_recording
from environments.polar.replay import open_logs, replay, to_parquet
from environments.polar.summary import describe, summarise
from environments.types import CallRecord, Chain
from infra.records import read_parquet


def write_some(folder, count=5):
    writer = LogWriter(folder)
    log = RolloutLog(writer, "r1")
    for i in range(count):
        log.append("note", {"n": i}, ids=[[i, i + 1]], logprobs=[[-0.5, -i]])
    writer.close()
    return writer.path


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.none(), max_size=4).filter(
        lambda head: "arrays" not in head
    ),
    st.lists(st.integers(0, 2**31 - 1)),
    st.lists(st.floats(max_value=0, allow_infinity=False)),
)
def test_a_record_is_read_back_as_it_was_written(head, ids, logprobs):
    frame = encode_entry(head, [ids], [logprobs])
    entry = decode_payload(frame[12:], 0)
    assert (dict(entry.head), list(entry.arrays[0]), list(entry.arrays[1])) == (head, ids, logprobs)


def test_every_cut_of_a_file_reads_as_the_whole_records_before_it(tmp_path):
    path = write_some(tmp_path, count=3)
    whole = path.read_bytes()
    ends = [entry.offset for entry in read_log(path).entries] + [len(whole)]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        read = read_log(path)
        kept = sum(end <= cut for end in ends[1:])
        assert len(read.entries) == kept
        assert read.torn_bytes == cut - ends[kept]
        assert read.damaged == ()


def test_a_flipped_bit_is_found_and_the_records_after_it_are_still_read(tmp_path):
    path = write_some(tmp_path, count=4)
    whole = bytearray(path.read_bytes())
    second = read_log(path).entries[2].offset
    whole[second + 40] ^= 1
    path.write_bytes(bytes(whole))
    read = read_log(path)
    assert [e.head.get("n") for e in read.entries] == [None, 0, 2, 3]
    assert [span[0] for span in read.damaged] == [second]
    rollout = read_rollouts(read.entries)["r1"]
    assert build_recording(rollout).broken == (UNNUMBERED_GAP,)


def test_a_log_of_another_version_is_refused_with_both_versions_named(tmp_path):
    path = tmp_path / "x.polarlog"
    path.write_bytes(encode_entry({"kind": "log", "format": "longbreath.polar.log", "version": 99}))
    with pytest.raises(LogDamaged, match="99"):
        read_log(path)


async def test_callers_share_one_sync(tmp_path):
    writer = LogWriter(tmp_path)
    before = writer.fsync_count

    async def one(i):
        writer.append({"kind": "note", "n": i})
        await writer.commit()

    await asyncio.gather(*(one(i) for i in range(200)))
    assert writer.fsync_count - before <= 5
    writer.close()


@pytest.mark.parametrize(("last_s", "at_once"), [(0.001, True), (0.02, False)])
async def test_a_lone_caller_waits_for_no_thread_unless_the_disk_was_slow_before(tmp_path, last_s, at_once):
    writer = LogWriter(tmp_path)
    before = writer.fsync_count
    writer.append({"kind": "note"})
    writer.recent_fsyncs_s.append(last_s)
    waiting = asyncio.create_task(writer.commit(alone=True))
    await asyncio.sleep(0)
    assert waiting.done() == at_once
    await waiting
    assert writer.fsync_count == before + 1
    writer.close()


async def test_a_lone_caller_shares_the_sync_that_is_under_way(tmp_path):
    writer = LogWriter(tmp_path)
    before = writer.fsync_count
    writer.append({"kind": "note"})
    first = asyncio.create_task(writer.commit())
    await asyncio.sleep(0)
    await writer.commit(alone=True)
    await first
    assert writer.fsync_count == before + 1
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_no_answer_ends_before_its_record_is_on_the_disk(tmp_path, tiny_folder, rendering, stream):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        for question in ("one", "two", "three"):
            synced = recorder.log.fsync_count
            await talker.ask(question, stream=stream)
            assert recorder.log.fsync_count == synced + 1


async def test_a_sync_that_failed_is_final_though_the_next_one_would_succeed(tmp_path):
    failures = iter([None, OSError("the disk gave up")])

    def sync(file):
        failure = next(failures, None)
        if failure is not None:
            raise failure

    writer = LogWriter(tmp_path, sync=sync)
    offset = writer.append({"kind": "note"})
    for _ in range(2):
        with pytest.raises(LogFailed, match="the disk gave up"):
            await writer.commit()
        with pytest.raises(LogFailed, match="the disk gave up"):
            writer.append({"kind": "note"})
    assert writer.read_at(offset).head["kind"] == "note"
    with pytest.raises(OSError, match="the disk gave up"):
        writer.close()
    with pytest.raises(LogFailed, match="is closed"):
        writer.append({"kind": "note"})


def test_nothing_follows_the_record_of_a_close(tmp_path):
    writer = LogWriter(tmp_path)
    log = RolloutLog(writer, "r1")
    log.append("note", {})
    log.close({"refused": ""})
    with pytest.raises(LogFailed, match="'r1' is closed"):
        log.append("delivered", {})
    assert [e.head["kind"] for e in log.entries()] == ["note", "close"]
    writer.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from environments.polar.errors import LogFailed
from environments.polar.log import LogWriter
writer = LogWriter(Path(sys.argv[1]))
writer.append({"kind": "note", "n": 0})
resource.setrlimit(resource.RLIMIT_FSIZE, (writer.path.stat().st_size + 50, resource.RLIM_INFINITY))
try:
    writer.append({"kind": "note", "n": 1, "text": "x" * 200})
except LogFailed as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.append({"kind": "note", "n": 2})
writer.close()
"""


def test_a_full_disk_is_said_and_leaves_no_half_record(tmp_path):
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "free some space" in done.stdout
    (path,) = tmp_path.glob("*.polarlog")
    read = read_log(path)
    assert [e.head.get("n") for e in read.entries] == [None, 0, 2]
    assert (read.torn_bytes, read.damaged) == (0, ())


async def test_a_call_that_cannot_be_logged_is_refused(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        talker.messages.append({"role": "user", "content": "x"})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (recorder.log.path.stat().st_size, limits[1]))
        try:
            answer = await talker.post(talker.messages)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "log_error")
        assert engine.requests == []
        assert (await talker.post(talker.messages)).status_code == 200
        recording = await recorder.close("r1")
    assert [(r.call_index, c.cause) for r, c in zip(engine.requests, recording.calls, strict=True)] == [(0, "root")]


async def test_a_full_disk_at_the_end_leaves_no_session_open(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    recorder = PolarRecorder(engine, tmp_path, rendering=rendering)
    for rollout_id in ("r1", "r2", "r3"):
        async with talking(recorder, rollout_id) as talker:
            await talker.ask("x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (recorder.log.path.stat().st_size, limits[1]))
    try:
        with pytest.raises(LogFailed, match="free some space"):
            await recorder.aclose()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(engine.closed_sessions) == ["r1.0", "r2.0", "r3.0"]
    with pytest.raises(LogFailed, match="is closed"):
        recorder.log.append({"kind": "note"})
    assert list(open_logs(tmp_path).rollouts) == ["r1", "r2", "r3"]


async def test_a_replay_is_what_close_gave_and_goes_to_parquet_and_back(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: call_text("ls", "hm"))
    logs = tmp_path / "logs"
    async with recorder_for(engine, logs, rendering) as recorder, talking(recorder, "a/b c") as talker:
        await talker.ask("Go.")
        talker.result("out")
        await talker.post(talker.messages, stream=True)
        recording = await recorder.close("a/b c")
    assert replay(logs, "a/b c") == recording
    assert to_parquet(logs, tmp_path / "out") == (2, 1)
    assert tuple(read_parquet(CallRecord, tmp_path / "out" / "calls.parquet")) == recording.calls
    assert tuple(read_parquet(Chain, tmp_path / "out" / "chains.parquet")) == recording.chains
    with pytest.raises(KeyError, match="nobody"):
        replay(logs, "nobody")
    with pytest.raises(FileNotFoundError, match="no recorder logs"):
        open_logs(tmp_path)


async def test_a_rollout_that_is_opened_again_counts_from_its_last_opening(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    for question in ("one", "two"):
        async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
            await talker.ask(question)
    recording = replay(tmp_path, "r1")
    assert len(recording.calls) == 1
    assert "two" in rendering.text(recording.calls[0].prompt_tail_ids)


async def test_what_answers_were_read_as_is_counted_and_survives_in_the_log(tmp_path, tiny_folder, rendering):
    unreadable = call_text("ls").replace('"arguments"', '"arguments": 1, "arguments"')
    engine = ScriptedEngine(tiny_folder, in_turn(call_text("ls", "hm"), unreadable, "<think>\nand so on", "ok" + STOP))
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        for question in ("one", "two", "three", "four"):
            await talker.ask(question)
        recording = await recorder.close("r1")
    assert list(recording.outcomes.values()) == ["tools", "malformed_tools", "open_reasoning", "text"]
    assert replay(tmp_path, "r1").outcomes == recording.outcomes
    assert "answers    malformed_tools 1, open_reasoning 1, text 1, tools 1" in describe(summarise([recording]))


async def test_the_summary_adds_up(tmp_path, tiny_folder, rendering):
    engine = ScriptedEngine(tiny_folder, lambda r: "ok" + STOP)
    async with recorder_for(engine, tmp_path, rendering) as recorder, talking(recorder) as talker:
        await talker.ask("one")
        await talker.ask("two")
        talker.tools = []
        await talker.post([{"role": "user", "content": "Give this session a title."}])
        summary = summarise([await recorder.close("r1")])
    assert (summary.calls, summary.chains, summary.trained_twice, summary.broken) == (3, 2, 0, 0)
    assert summary.sampled == summary.delivered == summary.trainable == 6
    assert (summary.chain_causes, summary.in_forks) == ({"root": 1, "side": 1}, {"side": 2})
    assert "root 1, side 1" in describe(summary)
