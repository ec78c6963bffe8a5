"""`longbreath benchmark`: measure one model folder on the held-out tasks."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from flows.cli.errors import guarded
from flows.cli.live import LiveProgress, console
from flows.cli.options import Common, Settings


def benchmark(
    model: Path | None = None,
    *,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Measure MODEL (default: the configuration's policy) on the held-out tasks, by horizon.

    Parameters
    ----------
    model: Path
        A Hugging Face model folder.
    """
    out = console()
    out.print("[bold]longbreath benchmark[/]: loading")

    def work() -> int:
        from flows.measure import measure_model

        with LiveProgress(1, out) as progress:
            result = measure_model(common.home, settings.build(), model, progress=progress)
        table = Table("horizon", "tasks", "success", "without any error", title=result["model"], title_justify="left")
        for band in result["by_horizon"]:
            low, high = band["horizons"]
            table.add_row(f"{low}-{high}", str(band["n"]), f"{band['success']:.1%}", f"{band['strict']:.1%}")
        held = result["held_out"]
        table.add_row("all", str(held["n"]), f"{held['mean']:.1%} [{held['low']:.1%}, {held['high']:.1%}]", "")
        out.print(table)
        common.emit(result)
        return 0

    return guarded(work)
