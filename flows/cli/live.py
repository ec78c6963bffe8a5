"""Live progress in a terminal; plain lines where there is none."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

_UNITS = {"pass_rate": "{:.0%}", "zero_gradient_share": "{:.0%}", "tokens_per_s": "{:,.0f}", "entropy": "{:.2f}"}


def console() -> Console:
    """Where people read: standard error, so that standard output carries results alone."""
    return Console(stderr=True, highlight=False)


class LiveProgress:
    """`tasks.progress.Progress` on a terminal: one bar, one line of figures, a log above them.

    `iterations` lets it estimate the time left from the iterations done so far.
    """

    def __init__(self, iterations: int, out: Console | None = None) -> None:
        self._console = out or console()
        self._iterations = iterations
        self._started = time.monotonic()
        self._figures: dict[str, float] = {}
        self._iteration: int | None = None
        self._first_iteration_at: float | None = None
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _render(self) -> RenderableType:
        row = Table.grid(padding=(0, 2))
        cells = [f"[dim]{k.replace('_', ' ')}[/] {_UNITS.get(k, '{:.3g}').format(v)}" for k, v in self._figures.items()]
        left = self._time_left_s()
        if left is not None:
            cells.append(f"[dim]left[/] about {left / 60:.0f} min" if left > 90 else f"[dim]left[/] about {left:.0f} s")
        row.add_row(*cells)
        return Group(self._bar, row)

    def _time_left_s(self) -> float | None:
        if self._first_iteration_at is None or not self._iteration:
            return None
        per_iteration = (time.monotonic() - self._first_iteration_at) / self._iteration
        return max(0.0, per_iteration * (self._iterations - self._iteration))

    def say(self, text: str) -> None:
        """See `Progress.say`."""
        elapsed = time.monotonic() - self._started
        self._console.print(f"[dim]{elapsed:6.1f}s[/] {text}")

    def begin(self, stage: str, *, iteration: int | None, total: int) -> None:
        """See `Progress.begin`."""
        if iteration is not None and self._first_iteration_at is None:
            self._first_iteration_at = time.monotonic()
        self._iteration = iteration if iteration is not None else self._iteration
        where = "" if iteration is None else f"iteration {iteration + 1}/{self._iterations} · "
        self._bar.reset(self._task, total=total or None, description=f"{where}{stage}")
        if iteration is None and not self._console.is_terminal:  # an iteration says what came of it when it ends
            self.say(f"{stage} ({total})" if total else stage)

    def advance(self, units: int = 1) -> None:
        """See `Progress.advance`."""
        self._bar.advance(self._task, units)

    def show(self, **figures: float) -> None:
        """See `Progress.show`."""
        self._figures.update(figures)
