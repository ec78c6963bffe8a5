"""Alarms as code: what Prefect's server does when a run fails, falls silent, is late, is refused or learns nothing.

    LONGBREATH_ALARM_URL=https://... python -m flows.automations

They are of the server, so they ring when the workers are gone too. Running it again brings them up to date. The alarm
is a POST of JSON: {"text": ..., "event": ..., "run": ..., "details": ...}, as chat systems' incoming webhooks take it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from flows.artifacts import REFUSED, ZERO_GRADIENT

if TYPE_CHECKING:
    from prefect.events import EventTrigger
    from prefect.events.schemas.automations import AutomationCore

BLOCK, PREFIX = "longbreath-alarm", "longbreath: "
SILENCE = timedelta(seconds=540)
"""Nine of the heartbeats that `infra/prefect.yaml` asks for: less would take a busy host's run for a dead one."""
OURS = {"prefect.resource.role": "tag", "prefect.resource.id": "prefect.tag.longbreath"}
"""The tag of the deployments in `infra/prefect.yaml`."""

_MESSAGE = """{
"text": {{ ("longbreath: " ~ event.event ~ ": " ~ event.resource.name) | tojson }},
"event": {{ event.event | tojson }},
"run": {{ event.resource.name | tojson }},
"details": {{ event.payload | tojson }}
}"""


def _triggers() -> Mapping[str, EventTrigger]:
    """What rings, by name."""
    from prefect.events import EventTrigger

    bad_ends = {f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut", "Late")}
    return {
        "a run failed, crashed or is late": EventTrigger(
            expect=bad_ends, match={"prefect.resource.id": "prefect.flow-run.*"}, match_related=OURS, posture="Reactive"
        ),
        "a candidate was refused": EventTrigger(expect={REFUSED}, posture="Reactive"),
        "three iterations within a day taught little": EventTrigger(
            expect={ZERO_GRADIENT},
            for_each={"prefect.resource.id"},
            threshold=3,
            within=timedelta(days=1),
            posture="Reactive",
        ),
    }


def _silent_run() -> AutomationCore:
    """A run whose process died leaves no state behind: after SILENCE it is marked as crashed."""
    from prefect.client.schemas.objects import StateType
    from prefect.events import EventTrigger
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore

    ended = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut")}
    return AutomationCore(
        name=f"{PREFIX}a silent run is crashed",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *ended},
            for_each={"prefect.resource.id"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=OURS,
            posture="Proactive",
            within=SILENCE,
        ),
        actions=[
            ChangeFlowRunState(state=StateType.CRASHED, message=f"no heartbeat for {SILENCE.seconds // 60} minutes")
        ],
    )


def automations(block_id: Any) -> Iterator[AutomationCore]:
    """Every automation, its alarm going through the webhook block `block_id`."""
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import AutomationCore

    yield _silent_run()
    ring = CallWebhook(block_document_id=block_id, payload=_MESSAGE)
    for name, trigger in _triggers().items():
        yield AutomationCore(name=f"{PREFIX}{name}", trigger=trigger, actions=[ring])


def install(url: str) -> list[str]:
    """Set the alarms on Prefect's server; their names. What had these names before is replaced."""
    from prefect.blocks.webhook import Webhook
    from prefect.client.orchestration import get_client

    block_id = Webhook(url=url).save(BLOCK, overwrite=True)
    wanted = list(automations(block_id))
    with get_client(sync_client=True) as client:
        for old in client.read_automations():
            if old.name.startswith(PREFIX):
                client.delete_automation(old.id)
        for new in wanted:
            client.create_automation(new)
    return [new.name for new in wanted]


def main() -> None:
    """The command: reads LONGBREATH_ALARM_URL."""
    url = os.environ.get("LONGBREATH_ALARM_URL", "")
    if not url.startswith(("http://", "https://")):
        sys.exit("LONGBREATH_ALARM_URL is not set; want the http(s) address that alarms are to be posted to")
    for name in install(url):
        print(name)


if __name__ == "__main__":
    main()
