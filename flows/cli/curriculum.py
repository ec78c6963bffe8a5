"""`longbreath curriculum show`: what a run believed of its tasks, what it chose, and why."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.markup import escape
from rich.table import Table

from flows.cli.errors import guarded
from flows.cli.live import console
from flows.cli.options import Common

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flows.home import Home
    from training.curriculum.base import Evidence, Selection, Strategy
    from training.curriculum.ledger import State

app = App(name="curriculum", help="Explain which tasks a run chose, and why.")


@app.command
def show(run_id: str, *, task: str = "", common: Common = Common()) -> int:  # noqa: B008 - frozen
    """Show a run's selections and what it now believes; with --task, one task's evidence and decisions.

    Parameters
    ----------
    run_id: str
        A run, as `longbreath runs list` names it.
    task: str
        One of its training tasks, as `longbreath tasks list` names it.
    """

    def work() -> int:
        from flows.home import Home

        kept = _read(Home(common.home), run_id)
        told = {
            "run_id": run_id,
            "strategy": kept.strategy.name,
            "settings": kept.settings,
            "policy_version": kept.version,
            **(_of_task(kept, task) if task else _of_run(kept)),
        }
        _print_task(told) if task else _print_run(told)
        common.emit(told)
        return 0

    return guarded(work)


@dataclass(frozen=True)
class _Kept:
    """A run's saved curriculum. `state` is after the last fold, `version` the policy that chooses next."""

    strategy: Strategy
    state: State
    selections: list[Selection]
    evidence: list[Evidence]

    @property
    def version(self) -> int:
        return self.state.version + 1

    @property
    def settings(self) -> dict[str, float | None]:
        """The strategy's own, those left at their defaults too."""
        from training.curriculum.strategies import settings_of

        return settings_of(self.strategy)


def _read(home: Home, run_id: str) -> _Kept:
    from flows.history import RunNotes
    from flows.home import saved_config
    from flows.overrides import ConfigError
    from infra import records
    from tasks.pass_rates import EVIDENCE, STATE
    from training.curriculum.base import Evidence, Selection
    from training.curriculum.saving import from_json

    notes, store = RunNotes(home, run_id), home.store
    folded = [store.path(m) for m in notes.manifests("curriculum")]
    if not folded:
        raise ConfigError(f"run {run_id} has folded no evidence yet; look again after its first iteration")
    chosen = [records.from_json(Selection, store.path(m).read_bytes()) for m in notes.manifests("selection")]
    return _Kept(
        strategy=saved_config(home, run_id).strategy(),
        state=from_json(json.loads((folded[-1] / STATE).read_text())),
        selections=[s for s in chosen if s.decisions],
        evidence=[e for folder in folded for e in records.read_parquet(Evidence, folder / EVIDENCE)],
    )


def _of_run(kept: _Kept) -> dict[str, Any]:
    """Keys: selections [{policy_version, groups, rollouts, probes, useful {expected, seen} (shares of groups with
    gradient; null before they are judged), tally, notes}], tasks [{task_id, alpha, beta, mean, low, high, rollouts,
    passed, chosen}], last [decisions of the newest selection].
    """
    from collections import Counter

    times = Counter(d.task_id for s in kept.selections for d in s.decisions)
    return {
        "selections": [
            {
                "policy_version": s.policy_version,
                "groups": len(s.decisions),
                "rollouts": s.num_rollouts,
                "probes": s.num_probe_rollouts,
                "useful": _useful(s, kept.evidence),
                "tally": dict(s.tally),
                "notes": list(s.notes),
            }
            for s in kept.selections
        ],
        "tasks": [{**row, "chosen": times[row["task_id"]]} for row in _posteriors(kept)],
        "last": [asdict(d) for d in kept.selections[-1].decisions],
    }


def _useful(selection: Selection, evidence: list[Evidence]) -> dict[str, float] | None:
    from training.curriculum.monitor import watch

    chosen = {d.task_id for d in selection.decisions}
    seen = [e for e in evidence if e.policy_version == selection.policy_version and e.task_id in chosen]
    if not seen:
        return None
    report = watch(seen, selection)
    return {"expected": report.expected_useful or 0.0, "seen": report.useful_share}


def _posteriors(kept: _Kept) -> list[dict[str, Any]]:
    from training.curriculum.signal import interval_90

    beliefs, columns = kept.strategy.beliefs(kept.state, kept.version), kept.state.columns
    low_N, high_N = interval_90(beliefs.alpha_N, beliefs.beta_N)
    return [
        {
            "task_id": task_id,
            "alpha": float(beliefs.alpha_N[i]),
            "beta": float(beliefs.beta_N[i]),
            "mean": float(beliefs.mean_N[i]),
            "low": float(low_N[i]),
            "high": float(high_N[i]),
            "rollouts": int(columns.rollouts[i]),
            "passed": int(columns.passed[i]),
        }
        for i, task_id in enumerate(kept.state.tasks.ids)
    ]


def _of_task(kept: _Kept, task_id: str) -> dict[str, Any]:
    """Keys: task_id, posterior, explanation [lines], evidence [per group], decisions [as they were made]."""
    row = kept.state.tasks.row(task_id)
    decisions = [(s.policy_version, d) for s in kept.selections for d in s.decisions if d.task_id == task_id]
    return {
        "task_id": task_id,
        "posterior": _posteriors(kept)[row],
        "explanation": list(kept.strategy.explain(kept.state, task_id, policy_version=kept.version)),
        "evidence": _by_group({e.rollout_id: e for e in kept.evidence if e.task_id == task_id}.values()),
        "decisions": [{"policy_version": version, **asdict(d)} for version, d in decisions],
    }


def _by_group(evidence: Iterable[Evidence]) -> list[dict[str, Any]]:
    groups: dict[str, list[Evidence]] = {}
    for item in evidence:
        groups.setdefault(item.group_id, []).append(item)
    return [
        {
            "group_id": group_id,
            "policy_version": members[0].policy_version,
            "kind": members[0].kind,
            "rollouts": len(members),
            "passed": sum(e.passed for e in members),
        }
        for group_id, members in groups.items()
    ]


def _print_run(told: dict[str, Any]) -> None:
    out = console()
    settings = ", ".join(f"{name} {_set(value)}" for name, value in told["settings"].items())
    out.print(escape(f"{told['strategy']}: {settings}"))
    heads = ("policy", "groups", "rollouts", "probes", "with gradient: expected", "seen", "pool by state")
    table = Table(*heads, title="selections", title_justify="left")
    for s in told["selections"]:
        tally = ", ".join(f"{count} {word}" for word, count in s["tally"].items())
        useful = s["useful"]
        shares = (f"{useful['expected']:.0%}", f"{useful['seen']:.0%}") if useful else ("", "")
        table.add_row(*(str(s[k]) for k in ("policy_version", "groups", "rollouts", "probes")), *shares, tally)
        for note in s["notes"]:
            table.add_row(*[""] * 6, escape(note))
    out.print(table)
    out.print(_decision_table("the newest selection", told["last"]))
    seen = sum(row["rollouts"] > 0 for row in told["tasks"])
    out.print(f"{seen} of {len(told['tasks'])} tasks were ever rolled out; --task TASK explains one")


def _set(value: float | None) -> str:
    return "from group_size" if value is None else str(value).lower()


def _print_task(told: dict[str, Any]) -> None:
    out = console()
    for line in told["explanation"]:
        out.print(escape(line))
    for e in told["evidence"]:
        said = f"policy {e['policy_version']}: {e['passed']} of {e['rollouts']} passed ({e['kind']}, {e['group_id']})"
        out.print(escape(said))
    out.print(_decision_table("decisions", told["decisions"]))


def _decision_table(title: str, decisions: list[dict[str, Any]]) -> Table:
    table = Table("task", "rollouts", "state", "pass rate", "signal", "why", title=title, title_justify="left")
    table.columns[0].no_wrap = True  # a name that is cut short cannot be given to --task
    for d in decisions:
        at = f"policy {d['policy_version']}" if "policy_version" in d else d["task_id"]
        rate = f"{d['mean']:.2f} \\[{d['low']:.2f}, {d['high']:.2f}]"
        table.add_row(at, str(d["group_size"]), d["state"], rate, f"{d['signal']:.3f}", escape(d["why"]))
    return table
