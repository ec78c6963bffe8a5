"""The kept shell: what lasts from command to command, what ends it, and what an agent cannot make of it."""

from __future__ import annotations

import asyncio

import pytest

from environments.sandboxes.base import Sandbox

NEW_SHELL = "[a new shell was started: its variables, functions and settings are gone]\n"


async def test_folder_variables_functions_aliases_and_status_last_between_commands(box: Sandbox) -> None:
    await box.run("mkdir d; cd d; x=5; export Y=6; f() { echo f$x; }; alias g='echo g'; (exit 9)")
    result = await box.run("echo $?; pwd; f; g; python3 -c 'import os; print(os.environ[\"Y\"])'")
    assert result.output.splitlines() == ["9", "/srv/d", "f5", "g", "6"]
    assert (result.exit_code, result.timed_out, result.truncated, result.fault) == (0, False, False, None)


async def test_stdout_and_stderr_come_in_the_order_they_were_written(box: Sandbox) -> None:
    result = await box.run("echo 1; echo 2 >&2; echo 3; nosuchcommand; exit_code=$?; (exit $exit_code)")
    assert result.output == "1\n2\n3\nbash: line 1: nosuchcommand: command not found\n"
    assert result.exit_code == 127


async def test_commands_of_many_lines_and_of_half_a_megabyte_run_whole(box: Sandbox) -> None:
    text = "ü" * 250_000
    result = await box.run(f"cat <<'END' | wc -c\n{text}\nEND\nif true; then\n  echo two\nfi")
    assert result.output == "500001\ntwo\n"


async def test_a_command_with_an_unclosed_quote_is_an_error_and_the_shell_lives(box: Sandbox) -> None:
    await box.run("kept=yes")
    result = await box.run("echo 'open")
    assert result.exit_code == 2 or result.exit_code == 1
    assert "unexpected EOF" in result.output
    assert (await box.run("echo $kept")).output == "yes\n"


async def test_a_nul_byte_is_refused_as_a_shell_would(box: Sandbox) -> None:
    result = await box.run("echo a\0b")
    assert result.exit_code == 2
    assert "NUL" in result.output


async def test_stdin_is_empty_so_a_reader_does_not_wait(box: Sandbox) -> None:
    result = await box.run("cat; read x || echo nothing", timeout_s=5)
    assert (result.output, result.timed_out) == ("nothing\n", False)


async def test_exit_gives_its_code_without_fault_and_the_next_command_says_that_the_shell_is_new(box: Sandbox) -> None:
    await box.run("cd /tmp; x=1")
    ended = await box.run("echo bye; exit 3")
    assert (ended.exit_code, ended.output, ended.fault) == (3, "bye\n", None)
    after = await box.run('pwd; echo "x=$x"')
    assert after.output == NEW_SHELL + "/tmp\nx=\n"
    assert (await box.run("echo quiet again")).output == "quiet again\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("kill -9 $$", 137), ("kill -TERM $$", 143), ("exec true", 0), ("exec sh -c 'exit 4'", 4)],
)
async def test_a_killed_or_replaced_shell_is_a_fault_and_a_new_one_starts(
    box: Sandbox, command: str, code: int
) -> None:
    ended = await box.run(command, timeout_s=5)
    assert (ended.exit_code, ended.fault, ended.timed_out) == (code, "shell_killed", False)
    assert (await box.run("echo alive")).output == NEW_SHELL + "alive\n"


async def test_a_shell_killed_between_commands_is_replaced_and_reported(box: Sandbox) -> None:
    await box.run("(sleep 0.1; kill -9 $$) &")
    await asyncio.sleep(0.4)
    after = await box.run("echo alive")
    assert (after.exit_code, after.output) == (0, NEW_SHELL + "alive\n")
    assert after.fault == "shell_killed"


@pytest.mark.parametrize(
    "command",
    [
        "set -u -f -x -v -o pipefail",
        "set -e",
        "exec >/dev/null 2>&1",
        "exec 0<&- 1>&- 2>&-",
        "trap 'echo trapped' DEBUG EXIT ERR RETURN",
        "alias echo='false'; alias eval=false; alias read=false",
        "read() { return 1; }; eval() { return 1; }; printf() { return 1; }",
        "IFS=0123456789abcdef; LC_ALL=de_DE; POSIXLY_CORRECT=1",
        "unset PATH HOME PWD; cd /; OLDPWD=/nowhere",
        "shopt -s extglob nullglob failglob; shopt -u expand_aliases",
        "LB_status=77; LB_frame=x; LB_set_status() { return 5; }",
    ],
)
async def test_nothing_an_agent_sets_breaks_the_driver(box: Sandbox, command: str) -> None:
    first = await box.run(command, timeout_s=5)
    assert (first.exit_code, first.timed_out) == (0, False)
    second = await box.run("\\builtin echo works; /bin/false", timeout_s=5)
    assert "works\n" in second.output
    assert (second.exit_code, second.timed_out) == (1, False)


async def test_a_shell_that_can_no_longer_read_is_replaced_at_the_timeout(box: Sandbox) -> None:
    stuck = await box.run("builtin() { :; }", timeout_s=0.5)
    assert stuck.timed_out
    assert (await box.run("echo fresh")).output == NEW_SHELL + "fresh\n"


FORGED = "0" * 32 + r" 0 /tmp\0"
FORGE = f"for fd in $(seq 3 20) 250 251 252; do printf '{FORGED}' >&$fd; done 2>/dev/null"


async def test_end_markers_forged_in_output_or_on_the_status_descriptor_end_nothing(box: Sandbox) -> None:
    result = await box.run(f"printf '{FORGED}'; {FORGE}; sleep 0.3; (exit 7)")
    assert result.exit_code == 7
    assert result.duration_s > 0.3
    await box.run(f"(for i in 1 2 3 4 5 6; do {FORGE}; sleep 0.05; done) &")
    later = await box.run("sleep 0.4; pwd > /srv/where; (exit 8)")
    assert (later.exit_code, await box.get("where")) == (8, b"/srv\n")


async def test_garbage_in_the_shells_own_command_pipe_costs_the_agent_its_shell_and_nothing_else(box: Sandbox) -> None:
    write_back = "exec 9<>/proc/$$/fd/12 && printf '99         garbage' >&9"
    await box.run(write_back)
    await box.run("true", timeout_s=1)
    assert (await box.run("echo alive", timeout_s=10)).output.endswith("alive\n")


async def test_the_standard_device_files_and_process_substitution_work(box: Sandbox) -> None:
    result = await box.run("echo 1 > /dev/stdout; echo 2 > /dev/stderr; cat <(echo 3); echo 4 | cat /dev/stdin")
    assert result.output == "1\n2\n3\n4\n"


async def test_what_runs_in_the_background_prints_into_a_later_command_as_on_a_terminal(box: Sandbox) -> None:
    first = await box.run("(sleep 0.2; echo late) & echo early")
    assert first.output == "early\n"
    await asyncio.sleep(0.5)
    assert (await box.run("echo next")).output == "late\nnext\n"


async def test_bytes_that_are_no_text_are_shown_and_not_lost(box: Sandbox) -> None:
    assert (await box.run(r"printf 'a\xffb'")).output == "a\ufffdb"


async def test_two_calls_at_once_run_one_after_the_other(box: Sandbox) -> None:
    results = await asyncio.gather(box.run("sleep 0.2; x=1; echo first"), box.run("echo second $x"))
    assert [r.output for r in results] == ["first\n", "second 1\n"]


async def test_a_cancelled_call_ends_its_command_and_the_box_goes_on(box: Sandbox) -> None:
    running = asyncio.create_task(box.run("sleep 57; touch /srv/went_on"))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = await box.run("ls /srv; pgrep -f 'sleep 57' || echo none")
    assert result.output == NEW_SHELL + "none\n"
