"""The weekly tidying: artifacts that only old runs used, quarantine, half-done work, and Prefect's old flow runs.

What stays: every run's settings, result, verdict and report; MLflow's runs and models, with the files of every
registered version; the promotion ledger.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from prefect import flow, get_run_logger

from flows.history import RunNotes
from flows.home import Home
from flows.noted import EXPIRED, STAGES
from infra.retention import drop_artifacts, remove_untouched
from infra.store import LocalStore

DAY_S = 86_400


@flow(name="maintenance")  # type: ignore[untyped-decorator]
def maintenance(keep_days: int = 30, home: str | None = None) -> dict[str, int]:
    """Throw away what is older than `keep_days`. Keys: runs, artifact_bytes, other_bytes, flow_runs."""
    place, since_s = Home.at(home), time.time() - keep_days * DAY_S
    log = get_run_logger()
    runs, artifact_bytes = expire_runs(place, since_s)
    store = place.store
    left_over = [place.root / "work", store.root / "quarantine"]
    other_bytes = sum(remove_untouched(folder, since_s=since_s) for folder in left_over)
    done = {
        "runs": runs,
        "artifact_bytes": artifact_bytes,
        "other_bytes": other_bytes,
        "flow_runs": _delete_flow_runs(since_s),
    }
    log.info("older than %d days and thrown away: %s", keep_days, done)
    return done


def expire_runs(home: Home, since_s: float) -> tuple[int, int]:
    """Drop the artifacts that only runs from before `since_s` used; how many runs, and the bytes freed.

    A run is as old as the last stage it noted. Only a store of this home alone is tidied: others may use a shared one.
    """
    store = home.store
    if not isinstance(store, LocalStore) or store.root != (home.root / "store").absolute():
        return 0, 0
    notes = {run_id: home.run(run_id) / STAGES for run_id in home.run_ids()}
    old = {run_id for run_id, path in notes.items() if path.exists() and path.stat().st_mtime < since_s}
    used = {run_id: RunNotes(home, run_id).all_manifests() for run_id in notes}
    freed = drop_artifacts(
        store,
        (m for run_id in old for m in used[run_id]),
        (m for run_id in used.keys() - old for m in used[run_id]),
    )
    for run_id in old:
        notes[run_id].rename(notes[run_id].with_name(EXPIRED))
    return len(old), freed


def _delete_flow_runs(since_s: float) -> int:
    """Delete Prefect's record of the flow runs that ended before; how many."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterEndTime

    before = FlowRunFilter(end_time=FlowRunFilterEndTime(before_=datetime.fromtimestamp(since_s, UTC)))
    deleted = 0
    with get_client(sync_client=True) as client:
        while found := client.read_flow_runs(flow_run_filter=before, limit=200):
            for run in found:
                client.delete_flow_run(run.id)
            deleted += len(found)
    return deleted
