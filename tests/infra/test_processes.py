"""Children are real processes: shells and Pythons that fork, hide, ignore signals and print."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from infra.processes import ProcessError, child_group, run_streaming

PYTHON = sys.executable


def _wait_for(path: Path, *, timeout_s: float = 20.0) -> str:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text.strip()
        time.sleep(0.01)
    raise AssertionError(f"{path} was never written")


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_lines_of_stdout_and_stderr_arrive_in_order_and_the_last_one_without_a_line_end_too() -> None:
    lines: list[str] = []
    end = run_streaming(["sh", "-c", "echo one; echo two >&2; printf three"], lines.append)
    assert lines == ["one", "two", "three"]
    assert (end.ending, end.exit_code) == ("exited", 0)


def test_a_megabyte_of_output_is_read_whole() -> None:
    lines: list[str] = []
    end = run_streaming(["sh", "-c", "seq 1 150000"], lines.append)
    assert lines == [str(n) for n in range(1, 150_001)]
    assert end.exit_code == 0


def test_a_line_arrives_while_the_child_still_runs() -> None:
    arrived: list[float] = []
    started = time.monotonic()
    run_streaming(["sh", "-c", "echo early; sleep 1.5"], lambda _: arrived.append(time.monotonic() - started))
    assert arrived[0] < 1.4


def test_the_exit_code_of_a_failing_child_is_told() -> None:
    assert run_streaming(["sh", "-c", "exit 7"], lambda _: None).exit_code == 7


def test_a_child_past_its_time_is_stopped_and_may_clean_up(tmp_path: Path) -> None:
    script = f"trap 'echo cleaned > {tmp_path}/log; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    end = run_streaming(["sh", "-c", script], lambda _: None, timeout_s=0.6)
    assert (end.ending, end.exit_code) == ("timed_out", 3)
    assert (tmp_path / "log").read_text() == "cleaned\n"


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    script = "trap '' TERM; while :; do sleep 0.05; done"
    end = run_streaming(["sh", "-c", script], lambda _: None, timeout_s=0.3, grace_s=0.3)
    assert (end.ending, end.exit_code) == ("timed_out", -9)
    assert end.duration_s < 5


def test_a_silent_child_is_stopped_and_a_talking_one_is_not() -> None:
    assert run_streaming(["sleep", "30"], lambda _: None, silence_s=0.4).ending == "silent"
    talking = ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.3; done"]
    assert run_streaming(talking, lambda _: None, silence_s=1.2).ending == "exited"


@pytest.mark.parametrize(
    "launch",
    [
        "sleep 60 & echo $! > {file}; wait",
        "trap '' TERM; (trap '' TERM; sleep 60 & echo $! > {file}; wait) & wait",
        "setsid sh -c 'echo $$ > {file}; trap \"\" TERM; sleep 60' & wait",
        "setsid sh -c 'echo $$ > {file}; exec sleep 60' & while [ ! -s {file} ]; do sleep 0.01; done",
    ],
    ids=["in the background", "ignoring SIGTERM", "in its own session", "orphaned in its own session"],
)
def test_no_grandchild_survives(launch: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with child_group(["sh", "-c", launch.format(file=file)], grace_s=0.3) as child:
        grandchild = int(_wait_for(file))
        assert _runs(grandchild)
        if launch.endswith("done"):
            child.popen.wait()
            assert _runs(grandchild)
    assert not _runs(grandchild)
    assert child.living() == []


def test_a_child_of_a_killed_child_group_is_found_too(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    nested = (
        "import time; from infra.processes import child_group\n"
        f"with child_group(['sh', '-c', 'echo $$ > {file}; exec sleep 60']): time.sleep(60)"
    )
    with child_group([PYTHON, "-c", nested]) as child:
        grandchild = int(_wait_for(file))
        child.popen.kill()
        child.popen.wait()
        assert _runs(grandchild)
    assert not _runs(grandchild)


def test_a_grandchild_that_keeps_the_pipe_does_not_keep_us() -> None:
    started = time.monotonic()
    lines: list[str] = []
    end = run_streaming(["sh", "-c", "sleep 60 & echo left it"], lines.append)
    assert lines == ["left it"]
    assert end.exit_code == 0
    assert time.monotonic() - started < 10


def test_what_a_callback_raises_stops_the_child_and_escapes(tmp_path: Path) -> None:
    def refuse(line: str) -> None:
        raise ValueError(line)

    file = tmp_path / "pid"
    with pytest.raises(ValueError, match="bad news"):
        run_streaming(["sh", "-c", f"echo $$ > {file}; echo bad news; exec sleep 60"], refuse)
    assert not _runs(int(file.read_text()))


def test_heartbeats_come_while_the_child_is_quiet() -> None:
    beats: list[float] = []
    run_streaming(["sleep", "1.5"], lambda _: None, on_heartbeat=beats.append, heartbeat_s=0.3)
    assert len(beats) >= 2
    assert beats == sorted(beats)


def test_a_process_that_is_not_ours_is_left_alone() -> None:
    with child_group(["sleep", "60"]) as bystander:
        run_streaming(["sh", "-c", "exit 0"], lambda _: None)
        assert bystander.popen.poll() is None


def test_a_command_that_is_not_there_says_which_and_what_to_do() -> None:
    with pytest.raises(ProcessError, match=r"cannot start 'no-such-tool'.*install it, or mend the path"):
        run_streaming(["no-such-tool"], lambda _: None)


def test_the_environment_given_replaces_ours() -> None:
    lines: list[str] = []
    run_streaming([PYTHON, "-c", "import os; print(sorted(os.environ))"], lines.append, env={"ONLY": "this"})
    assert "'ONLY'" in lines[0]
    assert "'PATH'" not in lines[0]
