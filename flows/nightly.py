"""The scheduled run: from the champion of the moment, with a seed of the day; see `infra/prefect.yaml`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from flows.config import PolicyConfig, RunConfig
from flows.finetune import finetune
from flows.home import Home
from flows.overrides import with_flags
from flows.presets import preset as preset_named
from infra import records
from tasks.registry import champion_at, open_registry

RETRY_DELAY_S = 60.0


@flow(name="nightly", retries=1, retry_delay_seconds=RETRY_DELAY_S)  # type: ignore[untyped-decorator]
def nightly(
    preset: str = "tiny",
    settings: list[str] | None = None,
    from_champion: bool = True,
    at: datetime | None = None,
    home: str | None = None,
) -> dict[str, Any]:
    """Fine-tune the champion further, benchmark it against itself as it was, promote or refuse.

    `settings` are 'section.field=value'. `at` (default: when the run was scheduled) decides the seed and which version
    was the champion: the same `at` is the same run, and goes on where it stopped. `from_champion=False` starts from the
    configuration's own policy. `home` (default: LONGBREATH_HOME) is where runs are kept.
    """
    place = Home.at(home)
    moment = (at or flow_run.scheduled_start_time or datetime.now(UTC)).astimezone(UTC)
    config = with_flags(preset_named(preset), tuple(settings or ()))
    config = replace(config, name="nightly", seed=int(moment.strftime("%Y%m%d")))
    if from_champion:
        config = _from_champion(place, config, moment)
    run = finetune.with_options(flow_run_name=config.run_id)
    result: dict[str, Any] = run(home=str(place.root), config=records.to_json(config).decode())
    return result


def _from_champion(home: Home, config: RunConfig, moment: datetime) -> RunConfig:
    """`config` with the champion of that moment as its policy; as it is while there is no champion."""
    uri = config.tracking.uri or home.mlflow_uri
    registry = open_registry(uri, config.tracking, home.root)
    found = champion_at(registry, moment.timestamp(), home.root / "champions")
    if found is None:
        return config
    return replace(config, policy=PolicyConfig(folder=str(found.folder), digest=found.sha256))
