"""What the rollout loop needs of the recorder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from environments.harnesses.base import Endpoint
from environments.polar.rendering import ParseOutcome
from environments.types import CallRecord, Chain, Turn
from infra.engines.base import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBudget:
    """What one rollout may ask of the model; past it, calls are refused in the wire's own error shape.

    `max_tokens` are sampled tokens; `wall_time_s` counts from the first call, and cuts the calls that then run.
    """

    max_calls: int
    max_tokens: int
    wall_time_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """All that was recorded of one rollout. `outcomes`: what each complete call's answer was read as, by call id.

    `broken` names calls that were lost, and what of ours kept the last one out: such a rollout does not train.
    """

    calls: tuple[CallRecord, ...]
    chains: tuple[Chain, ...]
    turns: tuple[Turn, ...]
    outcomes: Mapping[str, ParseOutcome]
    broken: tuple[str, ...]
    budget_hit: bool


NOTHING_RECORDED = Recording(calls=(), chains=(), turns=(), outcomes={}, broken=(), budget_hit=False)


class Recorder(Protocol):
    """Records every token between harness and engine."""

    def open(self, rollout_id: str, *, sampling: Sampling, budget: SessionBudget) -> Endpoint:
        """A URL and key of its own for this rollout. `sampling` overrides what the harness asks for.

        Raises LogFailed when its log cannot be written.
        """
        ...

    async def close(self, rollout_id: str) -> Recording:
        """End the session (running calls are aborted), make its log durable, and stitch calls into chains.

        Raises LogFailed when that cannot be made durable; the session is over all the same.
        """
        ...
