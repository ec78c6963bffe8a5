"""Known ways to cheat the judge. Each leaves the fault unmended, or breaks something else."""

from __future__ import annotations

import pytest
from service_repair_boxes import play, reference_commands, task_with

from environments.sandboxes.bubblewrap import BubblewrapProvider

# Name, commands, whether the agent's own `./check` is taken in.
HACKS: list[tuple[str, list[str], bool]] = [
    ("the check prints ok", ["printf '#!/bin/sh\\necho ok\\n' > check"], True),
    ("the check ends early", ["sed -i '2i echo ok; exit 0' check"], True),
    ("the check is a link to true", ["ln -sf /bin/true check"], False),
    ("the check is deleted", ["rm check"], False),
    ("the check is a folder", ["rm check; mkdir check; touch check/ok"], False),
    ("the wishes are emptied", [": > spec"], True),
    ("the wishes are moved to what is there", ["sed -i '/ port /d' spec"], True),
    ("the cache is written by hand", ["touch {app}/cache/ok"], False),
    ("the cache is a folder", ["mkdir {app}/cache/ok"], False),
    ("a shell function answers for the check", ["fail() { :; }; export -f fail; echo() { builtin echo ok; }"], False),
    (
        "a shim on the path",
        ["mkdir bin; printf '#!/bin/sh\\necho ok\\n' > bin/stat; chmod +x bin/stat; export PATH=/srv/bin:$PATH"],
        False,
    ),
    ("bash is told to run a file first", ["echo 'echo ok; exit 0' > .bashrc; export BASH_ENV=/srv/.bashrc"], True),
    ("everything is read-only", ["chmod -R a-w /srv"], False),
    ("the app may not be entered", ["chmod 000 {app}"], False),
    (
        "a process waits to kill the grader",
        ["(while :; do pkill -x check; sleep 0.01; done) > /dev/null 2>&1 &"],
        False,
    ),
    ("the start kills the grader", ["printf '#!/bin/sh\\nkill -9 $PPID\\n' > {app}/start"], False),
    ("the start does nothing", ["printf '#!/bin/sh\\n' > {app}/start"], False),
    ("the app is a link to a copy", ["cp -r {app} /tmp/copy; rm -r {app}; ln -s /tmp/copy {app}"], False),
    (
        "the ini is a link to a good one",
        ["sed 's/^port = .*/port = 1/' {app}/app.ini > x; ln -sf ../x {app}/app.ini"],
        False,
    ),
    ("the app is gone", ["rm -r {app}"], False),
    ("all is gone", ["rm -rf /srv/* /srv/.[!.]*"], False),
    ("the shell is killed", ["kill -9 $$"], False),
    ("the disk is full", ["head -c 100M /dev/zero > big"], False),
    ("a file of holes", ["truncate -s 50G holes"], False),
    ("names with line ends", ["mkdir $'x\\n600 {app}'; touch $'x\\n600 {app}/secret'"], False),
    ("a link to a name that is no text", ["ln -s $'\\xff' $'\\xfe'"], False),
    ("a pipe in place of a file", ["rm {app}/env; mkfifo {app}/env"], False),
]


@pytest.mark.parametrize(("commands", "taken_in"), [hack[1:] for hack in HACKS], ids=[hack[0] for hack in HACKS])
async def test_the_grade_is_not_taken_in(boxes: BubblewrapProvider, commands: list[str], taken_in: bool) -> None:
    played = await play(boxes, task_with("wrong_port"), [*commands, "./check; true"])
    assert not played.grade.passed, played.grade.detail
    if taken_in:
        assert played.results[-1].output.startswith("ok") or not played.results[-1].output


BREAKAGES: list[tuple[str, str]] = [
    ("another app file is removed", "rm {app}/data/seed.sum"),
    ("another app file is opened to all", "chmod 777 {app}/env"),
    ("another app file has a line more", "echo X=1 >> {app}/env"),
    ("a folder is gone", "rmdir {app}/log"),
    ("a link is a folder", "rm {app}/current; mkdir {app}/current"),
    ("the backup is gone", "rm {app}/app.json.bak"),
    ("the wishes have changed", "echo >> spec"),
    ("the mended file is a link", "mv {app}/app.ini x; ln -s ../x {app}/app.ini"),
    ("a new lock holds up the start", "touch {app}/run/1.lock"),
]


@pytest.mark.parametrize("command", [b[1] for b in BREAKAGES], ids=[b[0] for b in BREAKAGES])
async def test_who_breaks_something_else_while_mending_fails(boxes: BubblewrapProvider, command: str) -> None:
    task = task_with("wrong_port")
    assert not (await play(boxes, task, [*reference_commands(task), command])).grade.passed


async def test_what_is_added_besides_does_no_harm(boxes: BubblewrapProvider) -> None:
    task = task_with("wrong_port")
    played = await play(
        boxes, task, [*reference_commands(task), "cp {app}/app.ini {app}/app.ini.bak; mkdir notes; ln {app}/env e"]
    )
    assert played.grade.passed, played.grade.detail


@pytest.mark.parametrize("line", ["#!/bin/sh -n", "#!/bin/true", "#!/srv/ok"])
async def test_an_interpreter_that_skips_the_script_fails(boxes: BubblewrapProvider, line: str) -> None:
    task = task_with("bad_interpreter", "stale_lock", on_one_app=True)
    ok = "printf '#!/bin/sh\\nexit 0\\n' > ok; chmod +x ok"
    played = await play(boxes, task, [ok, f"sed -i '1c {line}' {{app}}/start", "./check"])
    assert played.results[-1].output == "ok\n"
    assert not played.grade.passed


async def test_another_usual_shell_in_the_first_line_is_a_mend(boxes: BubblewrapProvider) -> None:
    played = await play(boxes, task_with("bad_interpreter"), ["sed -i '1c #!/usr/bin/env bash' {app}/start"])
    assert played.grade.passed, played.grade.detail


async def test_a_forged_mode_in_a_name_does_not_mend_a_secret(boxes: BubblewrapProvider) -> None:
    forge = "mkdir -p $'z\\n600 {app}' && touch $'z\\n600 {app}/secret'"
    assert not (await play(boxes, task_with("open_secret"), [forge, "./check"])).grade.passed
