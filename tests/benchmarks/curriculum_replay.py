"""Real runs replayed: would a strategy have known which groups carry gradient? `curriculum.py replay HOME ...`

Before each policy version's groups every arm predicts which of them will be mixed, from what it was told until then;
then it is told. This judges belief, not choice. Even predictions that are right show a gap between the predicted and
the seen share of a bin, by chance: `floor` is that gap's mean over outcomes drawn from the arm's own predictions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from environments.suites.registry import suite_named
from environments.types import TaskPool
from flows.history import RunNotes
from flows.home import Home
from infra import records
from tasks.pass_rates import EVIDENCE
from tasks.pools import PoolConfig, make_pools
from tasks.stage import code_version
from training.curriculum.base import Evidence, Strategy
from training.curriculum.calibration import Predictions, predict, reliability
from training.curriculum.ledger import Aging, Floats
from training.curriculum.posterior import Posterior
from training.curriculum.uniform import Uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class Discounted(Uniform):
    """A Beta posterior from Beta(1, 1) that fades by the default's first discount and knows of no kin."""

    name: str = "discounted"

    @property
    def aging(self) -> Aging:
        """Evidence fades with every policy version."""
        return Aging(discount=0.95)


ARMS: dict[str, Strategy] = {
    "posterior": Posterior(),
    "discounted Beta, no prior": Discounted(),
    "flat Beta": Uniform(),
}


def log_of(home: Home, run_id: str) -> tuple[TaskPool, list[Evidence]]:
    """A run's training tasks and all its evidence. Runs of older code have other settings; these are read plainly.

    A play of `curriculum_real.py` notes no stages, but has a home, and so a store, of its own.
    """
    notes, store = RunNotes(home, run_id), home.store
    pool = PoolConfig(**json.loads((notes.folder / "config.json").read_bytes())["data"]["pool"])
    folded = [store.path(m) / EVIDENCE for m in notes.manifests("curriculum")]
    folded = folded or sorted(home.root.glob(f"store/objects/*.curriculum/{EVIDENCE}"))
    evidence = [e for path in folded for e in records.read_parquet(Evidence, path)]
    return make_pools(suite_named(pool.suite), pool).train, evidence


def replay_homes(homes: Sequence[Path], out: Path) -> None:
    """Replay every run of these homes that folded evidence, alone and all together; print and write what was found."""
    logs = [(run_id, *log_of(Home(root), run_id)) for root in homes for run_id in Home(root).run_ids()]
    logs = [log for log in logs if log[2]]
    found: dict[str, Any] = {"code": code_version(), "runs": {}, "all": {}}
    for arm, strategy in ARMS.items():
        each = {run_id: predict(strategy, pool, evidence) for run_id, pool, evidence in logs}
        for run_id, predictions in each.items():
            found["runs"].setdefault(run_id, {})[arm] = _judged(predictions)
        found["all"][arm] = _judged(Predictions.joined(list(each.values())))
    out.write_text(json.dumps(found, indent=1) + "\n")
    for name, arms in (*found["runs"].items(), ("all", found["all"])):
        for arm, r in arms.items():
            print(
                f"{name}: {arm}: {r['groups']} groups, reliability gap {r['gap']:.3f} (floor {r['floor']:.3f}), "
                f"bias {r['bias']:+.3f}, Brier {r['brier']:.3f}, {r['nats']:.3f} nats"
            )


def _judged(predictions: Predictions) -> dict[str, Any]:
    found = reliability(predictions.expected, predictions.seen)
    return {
        "groups": len(predictions.expected),
        "gap": round(found.gap, 4),
        "floor": round(_floor(predictions.expected), 4),
        "bias": round(found.bias, 4),
        "brier": round(found.brier, 4),
        "nats": round(found.nats, 4),
        "bins": [[b.count, round(b.expected, 3), round(b.seen, 3)] for b in found.bins],
    }


def _floor(expected: Floats, *, draws: int = 1000) -> float:
    rng = np.random.default_rng(0)
    seen = rng.random((draws, len(expected))) < expected
    return float(np.mean([reliability(expected, row.astype(np.float64)).gap for row in seen]))
