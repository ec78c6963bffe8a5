"""`longbreath claims`: the article's claims, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App
from rich.table import Table

from flows.cli.errors import guarded
from flows.cli.live import console
from flows.cli.options import Common

if TYPE_CHECKING:
    from training.experiments.cispo_claim import CispoClaim

app = App(name="claims", help="Measure the claims that the method rests on.")


@app.command
def cispo(*, seeds: int = 10, out: Path | None = None, common: Common = Common()) -> int:  # noqa: B008 - frozen
    """Clipping the weight instead of the loss keeps rare tokens learning, and what that costs under noise.

    Parameters
    ----------
    seeds: int
        Runs of each loss; the noisy case does twice as many.
    out: Path
        Where `cispo.json` and two plots go; by default `claims/cispo` below the home folder.
    """

    def work() -> int:
        from dataclasses import asdict

        from flows.overrides import ConfigError
        from training.experiments.cispo_claim import ClaimPlan, run_cispo_claim

        if seeds < 1:
            raise ConfigError(f"--seeds is {seeds}; want at least 1")
        folder = out or common.home / "claims" / "cispo"
        screen = console()
        with screen.status("cispo") as status:
            claim = run_cispo_claim(folder, plan=ClaimPlan(seeds=seeds), report=status.update)
        screen.print(_rare_table(claim), _noisy_table(claim))
        for line in claim.findings:
            screen.print(f"- {line}", markup=False)
        screen.print(f"written: {folder}")
        common.emit({"out": str(folder), **asdict(claim)})
        return 0

    return guarded(work)


def _rare_table(claim: CispoClaim) -> Table:
    table = Table(
        "start", "rate", "loss", "waited", "batches to 1/2", "worst seed", "gradient share, last update",
        title=f"The rare token, {claim.seeds} seeds", title_justify="left",
    )  # fmt: skip
    for row in claim.rare:
        share = f"{row.gradient_share[-1]:.3f}" if row.gradient_share else "-"
        needed = (row.waited_median, row.batches_to_half_median, row.batches_to_half_max)
        table.add_row(
            f"{row.start_probability:g}", f"{row.learning_rate:g}", row.loss, *(_count(n) for n in needed), share
        )
    return table


def _count(batches: float | None) -> str:
    return "never" if batches is None else f"{batches:g}"


def _noisy_table(claim: CispoClaim) -> Table:
    table = Table(
        "batches late", "rate", "loss", "best token at the end", "worst seed", "seeds that lost it",
        title=f"Noisy rewards, {2 * claim.seeds} seeds", title_justify="left",
    )  # fmt: skip
    for row in claim.noisy:
        ends = (f"{row.final_mean:.2f}", f"{row.final_min:.2f}", f"{row.lost_fraction:.0%}")
        table.add_row(str(row.staleness), f"{row.learning_rate:g}", row.loss, *ends)
    return table
