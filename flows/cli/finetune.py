"""`longbreath finetune` and `longbreath step`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from flows.cli.errors import guarded
from flows.cli.live import LiveProgress, console
from flows.cli.options import Common, Settings


def step(
    *,
    tasks: int = 4,
    group: int = 8,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Roll out, judge and take one CISPO step; say what happened.

    Killed at any point, the same command goes on where it stopped and ends with the same weights.

    Parameters
    ----------
    tasks: int
        Tasks to roll out.
    group: int
        Rollouts of each task.
    """
    out = console()
    out.print("[bold]longbreath step[/]: loading")

    def work() -> int:
        from flows.step import take_step

        config = settings.build()
        with LiveProgress(1, out) as progress:
            result = take_step(common.home, config, tasks=tasks, group=group, progress=progress)
        out.print(_step_table(result))
        common.emit(result)
        return 0

    return guarded(work)


def _step_table(result: dict[str, Any]) -> Table:
    table = Table(title=f"One step: policy {result['policy_version']}", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")  # a folder that is cut short cannot be used
    for key, value in result.items():
        table.add_row(key.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
    return table


def finetune(
    *,
    fresh: Annotated[bool, Parameter(negative="")] = False,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Fine-tune an agent: measure, select, roll out, judge, train, benchmark, promote or refuse.

    Killed at any point, the same command goes on where it stopped. What an earlier run has done is reused.

    Parameters
    ----------
    fresh: bool
        Do all the work anew instead of reusing what an earlier run has done.
    """
    out = console()
    out.print(f"[bold]longbreath finetune[/] --preset {settings.preset}: loading libraries, then measuring the start")

    def work() -> int:
        from flows.home import Home

        Home(common.home).settle_prefect()
        from flows.cli.summary import print_summary
        from flows.finetune import run_finetune

        config = settings.build()
        with LiveProgress(config.iterations, out) as progress:
            result = run_finetune(common.home, config, progress=progress, fresh=fresh)
        print_summary(result, out)
        common.emit(result)
        return 0

    return guarded(work)
