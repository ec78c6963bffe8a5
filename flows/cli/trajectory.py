"""`longbreath trajectory show`: read what an agent did, turn by turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.markup import escape

from flows.cli.errors import guarded
from flows.cli.live import console
from flows.cli.options import Common

if TYPE_CHECKING:
    from environments.types import Judged, Trajectory

app = App(name="trajectory", help="Read trajectories.")


@app.command
def show(
    run_id: str,
    rollout_id: str = "",
    *,
    policy: int | None = None,
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Show one trajectory of a run; without ROLLOUT_ID, list those there are.

    Parameters
    ----------
    run_id: str
        A run, as `longbreath runs list` names it.
    rollout_id: str
        One of its rollouts.
    policy: int
        Of which policy version; by default the newest that did this rollout (benchmarks repeat theirs).
    """

    def work() -> int:
        from flows.history import find_trajectory, trajectories_of
        from flows.home import Home

        home = Home(common.home)
        if rollout_id:
            trajectory, judged = find_trajectory(home, run_id, rollout_id, policy_version=policy)
            _print(trajectory, judged)
            common.emit(_answer(trajectory, judged))
            return 0
        rows = trajectories_of(home, run_id)
        for trajectory, judged in rows:
            mark = "[green]pass[/]" if judged.passed else "[red]fail[/]"
            said = f"policy {trajectory.policy_versions[1]}  {len(trajectory.turns)} turns  {trajectory.status}"
            console().print(f"{mark} {trajectory.rollout_id}  {said}", soft_wrap=True)
        common.emit({"rollouts": [_row(t, j) for t, j in rows]})
        return 0

    return guarded(work)


def _row(trajectory: Trajectory, judged: Judged) -> dict[str, Any]:
    return {
        "rollout_id": trajectory.rollout_id,
        "task_id": trajectory.task_id,
        "policy_version": trajectory.policy_versions[1],
        "status": trajectory.status,
        "num_turns": len(trajectory.turns),
        "reward": judged.reward,
        "passed": judged.passed,
    }


def _answer(trajectory: Trajectory, judged: Judged) -> dict[str, Any]:
    """A row, and the turns and gates to read; `gates` is empty where the rollout could not be judged."""
    from environments.types import Verdict

    shown = ("index", "thought", "action", "observation", "exit_code", "error_class", "duration_s")
    gates = judged.result.gates if isinstance(judged.result, Verdict) else ()
    return {
        **_row(trajectory, judged),
        "turns": [{name: getattr(turn, name) for name in shown} for turn in trajectory.turns],
        "final_payload": trajectory.final_payload,
        "gates": [{"name": g.name, "outcome": g.outcome, "detail": g.detail} for g in gates],
    }


def _print(trajectory: Trajectory, judged: Judged) -> None:
    from environments.types import Verdict

    out = console()
    out.print(f"[bold]{trajectory.rollout_id}[/] · {trajectory.status} {escape(trajectory.fault)}")
    for turn in trajectory.turns:
        out.print(f"\n[dim]{turn.index + 1:3}[/] [italic]{escape(turn.thought)}[/]")
        out.print(f"    [bold]$ {escape(turn.action)}[/]")
        style = "red" if turn.error_class else "dim"
        for line in turn.observation.splitlines():
            out.print(f"    [{style}]{escape(line)}[/]")
    if trajectory.final_payload is not None:
        out.print(f"\n    [italic]{escape(trajectory.final_thought)}[/]\n    {escape(trajectory.final_payload)}")
    if isinstance(judged.result, Verdict):
        for gate in judged.result.gates:
            said = f": {escape(gate.detail)}" if gate.detail else ""
            out.print(f"gate {gate.name}: {gate.outcome}{said}")
        out.print(f"reward {judged.result.reward:g}")
    else:
        out.print(f"not judged: {escape(judged.result.reason)}")
