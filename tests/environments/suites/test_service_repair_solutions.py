"""References, their absence, and obvious wrong mends, in real boxes."""

from __future__ import annotations

import asyncio

import pytest
from service_repair_boxes import SUITE, faulty_app, play, reference_commands, task_with

from environments.gates.commands import policy_of, read_commands
from environments.sandboxes.bubblewrap import BubblewrapProvider
from environments.suites.service_repair.blueprint import blueprint
from environments.suites.service_repair.faults import KINDS
from environments.suites.service_repair.suite import task_of
from environments.types import TaskSpec

AT_ONCE = 4


async def assert_reference_holds(boxes: BubblewrapProvider, task: TaskSpec) -> None:
    played = await play(boxes, task, reference_commands(task))
    plan = blueprint(task.seed, task.horizon)
    expected = [shown for fault in plan.faults for shown in fault.shown] + ["ok"]
    assert [result.output.strip("\n") for result in played.results] == expected, task.task_id
    errors = [SUITE.error_class(c, r) for c, r in zip(reference_commands(task), played.results, strict=True)]
    assert not any(errors), (task.task_id, errors)
    assert played.grade.passed, (task.task_id, played.grade.detail)
    assert len(played.results) == task.horizon


async def assert_references_hold(boxes: BubblewrapProvider, tasks: list[TaskSpec]) -> None:
    turnstile = asyncio.Semaphore(AT_ONCE)

    async def one(task: TaskSpec) -> None:
        async with turnstile:
            await assert_reference_holds(boxes, task)

    await asyncio.gather(*(one(task) for task in tasks))


async def test_fifty_references_show_what_they_should_and_pass(boxes: BubblewrapProvider) -> None:
    short = [task_of(seed, 3 + seed % 10) for seed in range(42)]
    long = [task_of(seed, horizon) for seed, horizon in enumerate((15, 18, 21, 24, 28, 32, 40, 50))]
    await assert_references_hold(boxes, short + long)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_five_hundred_references_over_all_horizons_pass(boxes: BubblewrapProvider) -> None:
    await assert_references_hold(boxes, [task_of(1000 + n, 3 + n % 48) for n in range(500)])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"stale_cache"}))
async def test_every_kind_alone_fails_when_nothing_is_done(boxes: BubblewrapProvider, kind: str) -> None:
    task = task_with(kind)
    played = await play(boxes, task, ["./check"])
    fault = blueprint(task.seed, task.horizon).faults[0]
    assert played.results[0].output.strip() == fault.shown[0]
    assert played.results[0].exit_code == 1
    assert not played.grade.passed
    assert played.grade.detail == fault.shown[0]


async def test_a_mended_tree_without_an_answer_fails(boxes: BubblewrapProvider) -> None:
    task = task_with("wrong_port")
    for payload in (None, "", "  "):
        played = await play(boxes, task, reference_commands(task), payload=payload)
        assert not played.grade.passed
        assert played.grade.detail == "no final answer was handed in"


async def test_a_cache_makes_the_check_pass_falsely_and_the_grade_does_not_believe_it(
    boxes: BubblewrapProvider,
) -> None:
    task = task_with("stale_cache", "wrong_port")
    played = await play(boxes, task, ["./check"])
    assert played.results[0].output.strip() == f"ok (cached) {faulty_app(task)}"
    assert played.results[0].exit_code == 0
    assert not played.grade.passed
    assert "port is" in played.grade.detail


WRONG_MENDS = [
    ("damaged_data", "sha256sum {app}/data/seed > {app}/data/seed.sum", "rows, want"),
    ("stale_sum", "rm {app}/data/seed.sum", "seed.sum: missing"),
    ("stale_backup", "cp {app}/app.json.bak {app}/app.json", "limit is"),
    ("corrupt_json", "echo '{}' > {app}/app.json", "not valid JSON"),
    ("missing_variable", "echo X=1 > {app}/env", "missing, want"),
    ("not_executable", "chmod 777 {app}/start", "mode is 777, want 755"),
    ("stale_lock", "rm -f {app}/run/*.lock", "keep.lock: missing"),
    ("lost_folder", "mkdir {app}/run", "keep.lock: missing"),
    ("misnamed_file", "touch {app}/app.ini", "port missing"),
    ("dangling_link", "ln -sfn releases {app}/current", "not the newest release"),
    ("wrong_order", "echo '10 init' > {app}/steps", "steps: 1 lines, want 4"),
    ("open_secret", "chmod 666 {app}/secret", "mode is 666, want 600"),
    ("split_port", "sed -i /admin/d {app}/app.ini {app}/app.json", "ports differ"),
    ("renamed_key", "sed -i '$d' {app}/app.ini", "missing"),
    ("bad_interpreter", "rm {app}/start", "start: missing"),
]


@pytest.mark.parametrize(("kind", "command", "shows"), WRONG_MENDS)
async def test_an_obvious_wrong_mend_really_breaks(
    boxes: BubblewrapProvider, kind: str, command: str, shows: str
) -> None:
    played = await play(boxes, task_with(kind), [command, "./check"])
    assert shows in played.results[1].output
    assert not played.grade.passed


async def test_damage_of_a_wrong_mend_can_be_made_good(boxes: BubblewrapProvider) -> None:
    task = task_with("damaged_data")
    summed = "sha256sum {app}/data/seed > {app}/data/seed.sum"
    played = await play(boxes, task, [summed, "cp {app}/data/seed.bak {app}/data/seed", summed, "./check"])
    assert played.results[-1].output == "ok\n"
    assert played.grade.passed


def test_no_reference_does_what_the_command_policy_forbids() -> None:
    for seed in range(60):
        task = task_of(seed, 3 + seed % 48)
        policy = policy_of(SUITE.forbidden(task), SUITE.box(task).workdir)
        assert read_commands(reference_commands(task), policy) is None, task.task_id
