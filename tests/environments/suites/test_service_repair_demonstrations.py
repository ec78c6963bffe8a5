"""The demonstrator, what its commands count as, and how large its language is."""

from __future__ import annotations

import random
import re

import pytest
from service_repair_boxes import SUITE, demonstrate, task_with

from environments.sandboxes.base import CommandResult
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.suites.base import ReferenceStep
from environments.suites.service_repair.acts import act_kind, error_class
from environments.suites.service_repair.blueprint import blueprint
from environments.suites.service_repair.demonstrations import CAREFUL, Demonstrator, FinalAnswer, Move, Rates, Seen
from environments.suites.service_repair.suite import task_of
from environments.types import ErrorClass

NOISY = Rates(error_rate=0.25, verify_rate=0.3, recover_rate=0.4)
PORT = "check: web/app.ini: port is 8132, want 8123"


def moves(history: list[Seen], rates: Rates, count: int = 300) -> list[Move]:
    return [Demonstrator(random.Random(seed), rates).next_move(history) for seed in range(count)]


def commands(history: list[Seen], rates: Rates, count: int = 300) -> list[str]:
    return [move.command if isinstance(move, ReferenceStep) else "answer" for move in moves(history, rates, count)]


def result(exit_code: int | None, output: str = "", timed_out: bool = False) -> CommandResult:
    return CommandResult(exit_code=exit_code, output=output, timed_out=timed_out, truncated=False, duration_s=0.0)


def test_the_careful_one_copies_what_the_check_says() -> None:
    assert set(commands([Seen("./check", PORT)], CAREFUL)) == {"sed -i s/8132/8123/ web/app.ini"}


def test_the_careful_one_checks_after_every_mend() -> None:
    history = [Seen("./check", PORT), Seen("sed -i s/8132/8123/ web/app.ini", "")]
    assert set(commands(history, CAREFUL)) == {"./check"}


def test_the_careful_one_answers_only_what_is_ok_and_not_cached() -> None:
    assert set(commands([Seen("./check", "ok\n")], CAREFUL)) == {"answer"}
    assert set(commands([Seen("./check", "ok (cached) web\n")], CAREFUL)) == {"rm -f web/cache/ok"}


def test_the_same_symptom_is_mended_by_what_the_look_shows() -> None:
    symptom = Seen("./check", "check: web/data/seed: checksum differs")
    with_backup = [symptom, Seen("ls web/data", "seed\nseed.bak\nseed.sum\n")]
    without = [symptom, Seen("ls web/data", "seed\nseed.sum\n")]
    assert set(commands(with_backup, CAREFUL)) == {"cp web/data/seed.bak web/data/seed"}
    assert set(commands(without, CAREFUL)) == {"sha256sum web/data/seed > web/data/seed.sum"}


def test_thoughts_vary_and_are_short() -> None:
    thoughts = {move.thought for move in moves([Seen("./check", PORT)], CAREFUL)}
    assert thoughts == {"port differs , set it", "port is wrong , set it", "set port as wanted"}


def test_without_verifying_a_mend_is_sometimes_the_last_word() -> None:
    history = [Seen("./check", PORT), Seen("sed -i s/8132/8123/ web/app.ini", "")]
    answers = commands(history, Rates(error_rate=0, verify_rate=0, recover_rate=1)).count("answer")
    assert 70 < answers < 140


def test_errors_come_at_their_rate() -> None:
    right = "sed -i s/8132/8123/ web/app.ini"
    wrong = [c for c in commands([Seen("./check", PORT)], NOISY) if c != right]
    assert 50 < len(wrong) < 100


def test_after_a_mend_without_effect_it_recovers_at_its_rate() -> None:
    history = [Seen("./check", PORT), Seen("touch web/env", ""), Seen("./check", PORT)]
    taken = commands(history, Rates(error_rate=0, verify_rate=1, recover_rate=0.4))
    assert 90 < taken.count("sed -i s/8132/8123/ web/app.ini") < 150
    assert 60 < taken.count("touch web/env") < 120


def test_who_knows_nothing_looks_round_once_and_stops() -> None:
    strange = [Seen("./check", "check: web/data/seed: rows are not those of spec")]
    assert set(commands(strange, CAREFUL)) == {"ls web"}
    assert set(commands([*strange, Seen("ls web", ""), *strange], CAREFUL)) == {"answer"}


@pytest.mark.parametrize("name", ["error_rate", "verify_rate", "recover_rate"])
def test_a_rate_that_is_no_probability_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 1.5; want a probability"):
        Rates(**{"error_rate": 0.0, "verify_rate": 0.0, "recover_rate": 0.0, name: 1.5})


async def test_the_careful_one_solves_in_a_box_what_it_reads_there(boxes: BubblewrapProvider) -> None:
    task = task_with("stale_backup", "stale_cache", "wrong_order")
    history, final, grade = await demonstrate(boxes, task, Demonstrator(random.Random(1)))
    assert final is not None
    assert [seen.command for seen in history] == [step.command for step in SUITE.reference(task)]
    assert grade.passed


async def test_the_careful_one_makes_good_what_a_hasty_start_broke(boxes: BubblewrapProvider) -> None:
    """It is handed a history with a wrong mend in it, as a warm start has them."""

    class Hasty(Demonstrator):
        def next_move(self, history: list[Seen]) -> Move:  # type: ignore[override]
            if len(history) == 1:
                return ReferenceStep(thought="try this", command=f"sha256sum {app}/data/seed > {app}/data/seed.sum")
            return super().next_move(history)

    task = task_with("damaged_data")
    app = blueprint(task.seed, task.horizon).faults[0].app
    _, final, grade = await demonstrate(boxes, task, Hasty(random.Random(1)))
    assert final is not None
    assert grade.passed, grade.detail


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_the_noisy_one_solves_between_a_quarter_and_less_than_half(boxes: BubblewrapProvider) -> None:
    passed = 0
    for seed in range(200):
        task = task_of(seed, 3 + seed % 10)
        passed += (await demonstrate(boxes, task, Demonstrator(random.Random(seed), NOISY)))[2].passed
    assert 50 <= passed <= 90


def test_the_language_is_small() -> None:
    texts: list[str] = []
    for seed in range(300):
        task = task_of(seed, 3 + seed % 10)
        shown = [text for fault in blueprint(task.seed, task.horizon).faults for text in fault.shown]
        steps = SUITE.reference(task)
        assert max(len(step.command.split()) for step in steps) <= 12
        assert max(len(step.thought.split()) for step in steps) <= 10
        assert max(len(text.split()) for text in shown) <= 25
        texts += [*shown, *(step.command for step in steps), *(step.thought for step in steps)]
    parts = {part for text in texts for part in re.findall(r"[A-Za-z]+|[^A-Za-z\d\s]", text)}
    assert len(parts) < 300


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("./check", "verify"),
        ("bash check", "verify"),
        ("cd /srv && ./check", "verify"),
        ("rm -f web/cache/ok; ./check", "mend"),
        ("cat web/app.ini", "inspect"),
        ("./web/start", "inspect"),
        ("grep '>' web/env", "inspect"),
        ("grep port web/app.ini | head -n 1", "inspect"),
        ("ls web 2> /dev/null", "inspect"),
        ("sed -n 1p web/start", "inspect"),
        ("sed -i s/1/2/ web/env", "mend"),
        ("sort -o web/steps web/steps", "mend"),
        ("sort web/steps", "inspect"),
        ("echo A=1 >> web/env", "mend"),
        ("sha256sum web/data/seed > web/data/seed.sum", "mend"),
        ("for f in web/*; do cat $f; done", "inspect"),
        ("(cat web/env);(rm web/lock)", "mend"),
        ("./web/start &> log", "mend"),
        ("./web/start > /dev/null 2>&1", "inspect"),
        ("cd web", "other"),
        ("echo hello", "other"),
        ("echo 'never closed", "other"),
        ("", "other"),
    ],
)
def test_commands_count_as_what_they_are_for(command: str, kind: str) -> None:
    assert act_kind(command) == kind


@pytest.mark.parametrize(
    ("command", "outcome", "error"),
    [
        ("./check", result(1, "check: web/log: no such directory"), None),
        ("./chekc", result(127, "bash: ./chekc: No such file or directory"), "exit_code"),
        ("./check", result(126, "bash: ./check: Permission denied"), "exit_code"),
        ("./web/start", result(1, "start: web/run/1.lock is held"), None),
        ("./web/start", result(127, "bash: ./web/start: cannot execute: required file not found"), None),
        ("./wbe/start", result(127, "bash: ./wbe/start: No such file or directory"), "exit_code"),
        ("grep x web/env", result(1), None),
        ("cat web/env | grep x", result(1), None),
        ("grep x web/nothing", result(2, "grep: web/nothing: No such file or directory"), "exit_code"),
        ("sed -i s/1/2/ web/nothing", result(2), "exit_code"),
        ("cat web/env", result(0), None),
        ("sleep 100", result(None, timed_out=True), "timeout"),
    ],
)
def test_only_some_exits_are_errors(command: str, outcome: CommandResult, error: ErrorClass | None) -> None:
    assert error_class(command, outcome) == error


def test_a_box_that_the_agent_broke_is_an_error() -> None:
    killed = CommandResult(
        exit_code=None, output="", timed_out=False, truncated=False, duration_s=0.0, fault="shell_killed"
    )
    assert error_class("kill -9 $$", killed) == "killed"


def test_a_final_answer_is_no_empty_text() -> None:
    final = Demonstrator(random.Random(0)).next_move([Seen("./check", "ok")])
    assert isinstance(final, FinalAnswer)
    assert final.answer == "done"
