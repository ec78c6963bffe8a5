"""`longbreath rollouts record -- COMMAND ...`: record any command that honours a base URL."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

from cyclopts import App, Parameter

from flows.cli.errors import EXIT_FAILED, guarded
from flows.cli.live import console
from flows.cli.options import Common
from flows.cli.proxy import Served, report

app = App(name="rollouts", help="Record rollouts.")


@app.command
def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    rollout_id: str = "recorded",
    served: Served = Served(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Run COMMAND with the policy as its model; print what was captured, delivered and trainable, and why it forked.

    The command finds OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY in its environment.

    Parameters
    ----------
    command: tuple[str, ...]
        The command and its words, after `--`.
    rollout_id: str
        The name of what is recorded, for `proxy replay`.
    """

    def work() -> int:
        from functools import partial

        from environments.polar.command import record_command

        if not command:
            raise ValueError("no command was given; want `longbreath rollouts record -- COMMAND ...`")
        if shutil.which(command[0]) is None:
            raise ValueError(f"no program {command[0]!r} is found on PATH; install it, or give its path")
        with served.open(common.home) as (workshop, recorder):
            started = partial(
                record_command,
                recorder,
                command,
                rollout_id=rollout_id,
                sampling=served.sampling,
                budget=served.budget,
                environment=os.environ,
            )
            recorded = workshop.run(started)
        report(recorded.recording, common)
        if recorded.exit_code != 0:
            console().print(f"the command ended with exit code {recorded.exit_code}")
        return 0 if recorded.exit_code == 0 and not recorded.recording.broken else EXIT_FAILED

    return guarded(work)
