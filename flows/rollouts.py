"""One shard of rollouts as a flow of its own, to be deployed to a work pool with GPUs; `flows.shards` asks for it."""

from __future__ import annotations

from prefect import flow, get_run_logger

from flows.config import RunConfig
from flows.engine import FlowLog
from flows.home import Home, open_shard_desk
from infra import records
from infra.manifest import Manifest
from tasks.rollouts import RolloutPlan, roll_out
from tasks.stage import perform


@flow(name="rollouts", validate_parameters=False)  # type: ignore[untyped-decorator]
def rollouts(config: str, plan: str, parents: list[str], salt: str = "", home: str | None = None) -> str:
    """Do one shard and publish it; its manifest as JSON. Parameters are JSON records: RunConfig, RolloutPlan, Manifest.

    `home` (default: LONGBREATH_HOME) is this machine's; the store must be the coordinator's (LONGBREATH_STORE).
    """
    settings = records.from_json(RunConfig, config.encode(), where="parameter config")
    shard = records.from_json(RolloutPlan, plan.encode(), where="parameter plan")
    made_from = tuple(records.from_json(Manifest, p.encode(), where="parameter parents") for p in parents)
    place = Home.at(home)
    name = shard.requests[0].group_id
    with open_shard_desk(place, settings, FlowLog(get_run_logger()), salt=salt, shard=name) as desk:
        work = roll_out(desk, shard, parents=made_from, config=settings.rollouts, gates=settings.gates)
        return records.to_json(perform(desk, work)).decode()
