"""`longbreath runs`: what has been run, and going on with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cyclopts import App
from rich.table import Table

from flows.cli.errors import guarded
from flows.cli.live import console
from flows.cli.options import Common

app = App(name="runs", help="List, show and resume runs.")


@app.command(name="list")
def list_(*, common: Common = Common()) -> int:  # noqa: B008 - frozen
    """List the runs there are, newest first."""

    def work() -> int:
        from flows.history import RunNotes
        from flows.home import Home

        home = Home(common.home)
        table = Table("run", "state", "held-out before", "after", "gain (points)", title="runs", title_justify="left")
        rows = []
        for run_id in home.run_ids():
            result = RunNotes(home, run_id).result()
            held = (result or {}).get("held_out")
            rows.append({"run_id": run_id, "finished": result is not None, "held_out": held})
            table.add_row(run_id, _state(run_id, result), *(_success(held) if held else ()))
        console().print(table)
        common.emit({"runs": rows})
        return 0

    return guarded(work)


def _state(run_id: str, result: Mapping[str, Any] | None) -> str:
    from flows.history import is_single_step

    return "one step" if is_single_step(run_id) else "finished" if result else "unfinished"


def _success(held: Mapping[str, Any]) -> tuple[str, str, str]:
    before, after, gain = (held[name]["mean"] for name in ("before", "after", "gain"))
    return f"{before:.1%}", f"{after:.1%}", f"{100 * gain:+.1f}"


@app.command
def show(run_id: str, *, common: Common = Common()) -> int:  # noqa: B008 - frozen
    """Show a run's settings, its artifacts and, when it is finished, its result."""

    def work() -> int:
        from flows.history import RunNotes, is_single_step
        from flows.home import Home

        notes = RunNotes(Home(common.home), run_id)
        out = console()
        out.print_json((notes.folder / "config.json").read_text())
        kinds = ("policy", "selection", "rollouts", "judged", "quality", "curriculum")
        counts = {kind: len(notes.manifests(kind)) for kind in kinds}
        out.print("artifacts: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()))
        result = notes.result()
        if is_single_step(run_id):
            out.print("one step; the `longbreath step` command that made it tells its result again")
        elif result is None:
            out.print(f"unfinished; `longbreath runs resume {run_id}` goes on with it")
        else:
            out.print_json(json.dumps(result))
        common.emit({"run_id": run_id, "artifacts": counts, "result": result})
        return 0

    return guarded(work)


@app.command
def resume(run_id: str, *, common: Common = Common()) -> int:  # noqa: B008 - frozen
    """Go on with an unfinished run, with the settings that it was started with."""
    out = console()
    out.print(f"[bold]longbreath runs resume[/] {run_id}: loading")

    def work() -> int:
        from flows.home import Home, saved_config

        home = Home(common.home)
        home.settle_prefect()
        from flows.cli.live import LiveProgress
        from flows.cli.summary import print_summary
        from flows.finetune import run_finetune
        from flows.history import RunNotes, is_single_step
        from flows.overrides import ConfigError

        notes = RunNotes(home, run_id)
        if is_single_step(run_id):
            raise ConfigError(f"{run_id} is one step; give its `longbreath step` command again: it goes on by itself")
        config = saved_config(home, notes.run_id)
        with LiveProgress(config.iterations, out) as progress:
            result = run_finetune(common.home, config, progress=progress, fresh=False)
        print_summary(result, out)
        common.emit(result)
        return 0

    return guarded(work)
