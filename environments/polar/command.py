"""Records any command that honours a base URL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from environments.harnesses.base import Endpoint
from environments.polar.base import Recording, SessionBudget
from environments.polar.recorder import PolarRecorder
from environments.polar.server import serving
from infra.engines.base import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCommand:
    """How the command ended, and all it asked of the model."""

    exit_code: int
    recording: Recording


def endpoint_variables(endpoint: Endpoint) -> Mapping[str, str]:
    """The environment by which the usual SDKs and agents find their model."""
    return {
        "OPENAI_BASE_URL": f"{endpoint.base_url}/v1",
        "OPENAI_API_BASE": f"{endpoint.base_url}/v1",
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
        "ANTHROPIC_BASE_URL": endpoint.base_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
    }


async def record_command(
    recorder: PolarRecorder,
    command: Sequence[str],
    *,
    rollout_id: str,
    sampling: Sampling,
    budget: SessionBudget,
    environment: Mapping[str, str],
) -> RecordedCommand:
    """Serve on loopback, run `command` to its end with the endpoint in its environment, and close the rollout.

    Raises FileNotFoundError when there is no such command. Cancelling ends the command too.
    """
    async with serving(recorder):
        endpoint = recorder.open(rollout_id, sampling=sampling, budget=budget)
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env={**environment, **endpoint_variables(endpoint)}
            )
            try:
                exit_code = await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
        finally:
            recording = await recorder.close(rollout_id)
    return RecordedCommand(exit_code=exit_code, recording=recording)
