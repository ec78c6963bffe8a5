"""What a run says where there is no terminal to draw in."""

from __future__ import annotations

import io

from rich.console import Console

from flows.cli.live import LiveProgress


def written(iteration: int | None) -> str:
    out = io.StringIO()
    with LiveProgress(3, Console(file=out, force_terminal=False, width=80)) as progress:
        progress.begin("demonstrate", iteration=iteration, total=600)
        progress.advance()
    return out.getvalue()


def test_a_stage_outside_iterations_is_announced_with_its_size() -> None:
    assert written(None).strip().endswith("demonstrate (600)")


def test_a_stage_of_an_iteration_is_not_for_the_iteration_says_what_came_of_it() -> None:
    assert written(1) == ""
