"""A plan's rollouts, done here or handed out in shards to a Prefect deployment; see `flows.rollouts` for the shard.

A shard's content key is known beforehand: one that was done before is not asked for again, and one that was lost is
asked for anew by the next attempt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flows.config import RunConfig
from infra import records
from infra.engines.base import EngineError
from infra.manifest import Manifest
from tasks.rollouts import RolloutPlan, merge, roll_out
from tasks.stage import Desk, Runner, Work

if TYPE_CHECKING:
    from uuid import UUID

POLL_S = 1.0


def roll_out_plan(
    desk: Desk, run: Runner, config: RunConfig, plan: RolloutPlan, parents: tuple[Manifest, ...]
) -> Manifest:
    """The plan's rollouts: done here, or in shards by the configured deployment. Raises EngineError for lost shards."""

    def work(part: RolloutPlan) -> Work:
        return roll_out(desk, part, parents=parents, config=config.rollouts, gates=config.gates)

    if not config.engine.deployment:
        return run(work(plan))
    parts = {work(part).key(desk): part for part in plan.split(config.engine.shards)}
    asked = {key: _ask(desk, config, part, parents) for key, part in parts.items() if desk.store.find(key) is None}
    ends = {key: f"flow run {run_id}: {_end_of(run_id)}" for key, run_id in asked.items()}
    lost = [ends.get(key, "found before, broken since") for key in parts if desk.store.find(key) is None]
    if lost:
        raise EngineError(
            f"{len(lost)} of {len(parts)} shards of {config.engine.deployment} are not in the store: {'; '.join(lost)}."
            f" Read these runs' logs, and see that their worker has this LONGBREATH_STORE; then run again"
        )
    # Every shard is in the store: running it finds it, and notes it among what the run used.
    return run(merge(desk, plan, tuple(run(work(part)) for part in parts.values()), parents=parents))


def _ask(desk: Desk, config: RunConfig, part: RolloutPlan, parents: tuple[Manifest, ...]) -> UUID:
    """Ask the deployment for a shard; the flow run's id."""
    from prefect.deployments import run_deployment

    total = sum(request.size for request in part.requests)
    desk.progress.say(f"{part.label}: {total} rollouts asked of {config.engine.deployment}")
    asked: Any = run_deployment(
        config.engine.deployment,
        timeout=0,
        parameters={
            "config": records.to_json(config).decode(),
            "plan": records.to_json(part).decode(),
            "parents": [records.to_json(parent).decode() for parent in parents],
            "salt": desk.salt,
        },
    )
    run_id: UUID = asked.id
    return run_id


def _end_of(asked: UUID) -> str:
    """Wait for a flow run; the state it ended in."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        while True:
            state = client.read_flow_run(asked).state
            if state is not None and state.is_final():
                return f"{state.name} {state.message or ''}".strip()
            time.sleep(POLL_S)
