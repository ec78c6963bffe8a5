"""The end of a run, for a person: what was gained, what it cost, where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def _percent(estimate: Mapping[str, float]) -> str:
    return f"{estimate['mean']:.1%} [{estimate['low']:.1%}, {estimate['high']:.1%}]"


def _gain(estimate: Mapping[str, float]) -> str:
    return f"{estimate['mean'] * 100:+.1f} [{estimate['low'] * 100:+.1f}, {estimate['high'] * 100:+.1f}]"


def _against_uniform(rollouts: Mapping[str, Any]) -> str:
    """Nothing where no group carried gradient: then nothing can be said."""
    uniform = rollouts["uniform_equivalent"]
    return "" if uniform is None else f"; uniform choice would need about {uniform} for the same groups with gradient"


def print_summary(result: Mapping[str, Any], out: Console) -> None:
    """A table of held-out success by horizon, then costs and places."""
    held = result["held_out"]
    table = Table(title="Held-out success, 95% intervals paired by task", title_justify="left")
    for column in ("horizon (turns)", "tasks", "before", "after", "gain (points)"):
        table.add_column(column, justify="left" if column.startswith("h") else "right")
    for band in result["by_horizon"]:
        low, high = band["horizons"]
        cells = (_percent(band["before"]), _percent(band["after"]), _gain(band["gain"]))
        table.add_row(f"{low}-{high}", str(band["gain"]["n"]), *cells)
    table.add_section()
    all_cells = (_percent(held["before"]), _percent(held["after"]), _gain(held["gain"]))
    table.add_row("[bold]all[/]", str(held["gain"]["n"]), *(f"[bold]{c}[/]" for c in all_cells))
    out.print(table)
    rollouts = result["rollouts"]
    out.print(f"rollouts: {rollouts['training']} for training, {rollouts['probes']} probes{_against_uniform(rollouts)}")
    shares = " ".join(f"{share:.0%}" for share in result["zero_gradient_share"])
    out.print(f"groups without gradient, by iteration: {shares}")
    verdict = "[green]promoted[/]" if result["promoted"] else "[yellow]refused[/]"
    out.print(f"verdict: {verdict}: {'; '.join(result['verdict'])}")
    slowest = sorted(result["stage_s"].items(), key=lambda item: -item[1])[:4]
    parts = ", ".join(f"{name} {wall:.0f} s" for name, wall in slowest)
    out.print(f"took {result['wall_s']:.0f} s ({parts}; Prefect {result['orchestration_s']:.1f} s)")
    out.print(f"report: [bold]{result['report_path']}[/]")
    out.print(f"model:  {result['model_uri']}")
    out.print(f"pages:  {result['commands']['mlflow']}\n        {result['commands']['prefect']}", soft_wrap=True)
