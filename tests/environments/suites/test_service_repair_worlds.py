"""Worlds and pools, without a box."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from environments.suites.registry import suite_named
from environments.suites.service_repair.apps import App, draw_app, healthy
from environments.suites.service_repair.blueprint import blueprint, broken_tar, split_of
from environments.suites.service_repair.faults import KINDS
from environments.suites.service_repair.suite import ServiceRepair, task_of
from environments.suites.service_repair.tree import Entry, TreeError, from_tar, to_tar
from environments.types import Split, TaskPool

SUITE = ServiceRepair()


def pool(split: Split, size: int, low: int = 3, high: int = 12, seed: int = 0) -> TaskPool:
    return SUITE.pool(split=split, size=size, seed=seed, min_horizon=low, max_horizon=high)


def test_there_are_nineteen_kinds_of_faults() -> None:
    assert len(KINDS) == 19


@pytest.mark.parametrize("horizon", range(3, 51))
def test_the_reference_has_exactly_as_many_turns_as_the_horizon(horizon: int) -> None:
    for seed in range(5):
        assert len(SUITE.reference(task_of(seed, horizon))) == horizon


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_horizons_are_spread_evenly(split: Split) -> None:
    assert Counter(task.horizon for task in pool(split, 30).tasks) == dict.fromkeys(range(3, 13), 3)


def test_a_small_pool_reaches_over_the_whole_range() -> None:
    assert [task.horizon for task in pool("train", 4, 3, 50).tasks] == [3, 18, 34, 50]


def test_the_splits_share_no_combination_of_faults() -> None:
    train = {task.tags for task in pool("train", 300).tasks}
    held_out = {task.tags for task in pool("held_out", 300).tasks}
    assert len(train) > 100
    assert len(held_out) > 50
    assert not train & held_out


def test_the_order_and_number_of_faults_do_not_change_the_split() -> None:
    orders = itertools.permutations(["stale_sum", "stale_lock", "wrong_port", "wrong_port"])
    assert {split_of(order) for order in orders} == {split_of(["stale_lock", "stale_sum", "wrong_port"])}


def test_both_splits_have_several_combinations_at_the_shortest_horizons() -> None:
    for split in ("train", "held_out"):
        assert len({task.tags for task in pool(split, 40, 3, 3).tasks}) >= 2
        assert len({task.tags for task in pool(split, 40, 4, 4).tasks}) >= 3


def test_the_same_seed_gives_the_same_pool_and_the_same_bytes() -> None:
    first, second = pool("train", 20, seed=4), pool("train", 20, seed=4)
    assert first.digest == second.digest
    before = [SUITE.initial_state(task) for task in first.tasks]
    blueprint.cache_clear()
    broken_tar.cache_clear()
    assert [SUITE.initial_state(task) for task in second.tasks] == before
    assert pool("train", 20, seed=5).digest != first.digest


def test_every_task_has_an_id_and_a_world_of_its_own() -> None:
    tasks = pool("train", 200).tasks
    assert len({task.task_id for task in tasks}) == 200
    assert len({SUITE.initial_state(task) for task in tasks}) == 200


def test_every_cache_hides_another_fault_of_its_app() -> None:
    for seed in range(120):
        faults = blueprint(seed, (5, 12, 25, 50)[seed % 4]).faults
        for cache in [fault for fault in faults if fault.kind == "stale_cache"]:
            assert any(fault.app == cache.app and fault.kind != "stale_cache" for fault in faults)


def test_tags_name_the_faults() -> None:
    task = task_of(11, 3)
    assert task.tags == tuple(f"fault:{fault.kind}" for fault in blueprint(11, 3).faults)


def test_instructions_are_short() -> None:
    assert max(len(task.instruction.split()) for task in pool("train", 48, 3, 50).tasks) <= 20


@pytest.mark.parametrize(("low", "high"), [(2, 5), (3, 51), (9, 8)])
def test_a_range_without_tasks_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=f"horizons {low}\\.\\.{high}.*want"):
        pool("train", 1, low, high)


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="size is 0; a pool wants at least 1"):
        pool("train", 0)


def test_an_unknown_suite_is_refused_with_the_names_there_are() -> None:
    assert suite_named("service_repair").name == "service_repair"
    with pytest.raises(ValueError, match="there are service_repair"):
        suite_named("service_repiar")


def test_numbers_of_one_app_are_all_different() -> None:
    app: App = draw_app("web", random.Random(3))
    numbers = [app.port, app.admin, app.limit, *(value for _, value in app.variables)]
    assert [len(str(number)) for number in numbers] == [4] * 5
    assert len(set(numbers)) == 5


def test_a_tree_survives_its_tar() -> None:
    tree = healthy(draw_app("web", random.Random(3)))
    assert from_tar(to_tar(tree)) == tree


def test_a_link_to_a_name_that_is_no_text_survives_its_tar() -> None:
    tree = {"odd": Entry("link", 0, b"\xff\xfe")}
    assert from_tar(to_tar(tree)) == tree


def test_a_tar_that_leaves_its_folder_is_refused() -> None:
    with pytest.raises(TreeError, match="outside the tree"):
        from_tar(to_tar({"../etc/passwd": Entry("file", 0o644, b"x")}))


def test_a_huge_file_is_not_carried_to_the_judge() -> None:
    assert from_tar(to_tar({"big": Entry("file", 0o644, bytes(2**20 + 1))}))["big"].type == "other"
