"""`longbreath`: one file a command group; nothing heavy is imported before the command line is understood."""

from __future__ import annotations

import os
import sys

_COMMANDS = {
    "finetune": "flows.cli.finetune:finetune",
    "step": "flows.cli.finetune:step",
    "benchmark": "flows.cli.benchmark:benchmark",
    "promote": "flows.cli.registry:promote",
    "rollback": "flows.cli.registry:rollback",
    "tasks": "flows.cli.tasks:app",
    "runs": "flows.cli.runs:app",
    "trajectory": "flows.cli.trajectory:app",
    "curriculum": "flows.cli.curriculum:app",
    "claims": "flows.cli.claims:app",
    "doctor": "flows.cli.doctor:doctor",
    "warm-start": "flows.cli.warm_start:warm_start",
}
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}


def main() -> None:
    """The console entry point. Exit codes: see `flows.cli.errors`."""
    from cyclopts import App

    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    app = App(
        name="longbreath",
        help="Turn a language model that is good for two steps into an agent that holds for fifty.",
        version_flags=["--version"],
        result_action="return_value",
    )
    for name, where in _COMMANDS.items():
        app.command(where, name=name)
    sys.exit(app())
