"""`longbreath`: one file a command group; nothing heavy is imported before the command line is understood."""

from __future__ import annotations

import os
import signal
import sys

_COMMANDS = {
    "finetune": (
        "flows.cli.finetune:finetune",
        "Fine-tune an agent; benchmark it; promote or refuse.",
    ),
    "step": ("flows.cli.finetune:step", "Roll out, judge and take one CISPO step; say what happened."),
    "benchmark": ("flows.cli.benchmark:benchmark", "Measure a model folder on the held-out tasks, by horizon."),
    "promote": ("flows.cli.registry:promote", "Make a version the champion, on record."),
    "rollback": ("flows.cli.registry:rollback", "Make the previous champion the champion again."),
    "tasks": ("flows.cli.tasks:app", "List, show and validate tasks."),
    "runs": ("flows.cli.runs:app", "List, show and resume runs."),
    "trajectory": ("flows.cli.trajectory:app", "Read what an agent did, turn by turn."),
    "curriculum": ("flows.cli.curriculum:app", "Explain what was chosen to train on, and why."),
    "claims": ("flows.cli.claims:app", "Measure the claims this pipeline rests on."),
    "proxy": ("flows.cli.proxy:app", "Serve the recording proxy, and replay what it recorded."),
    "rollouts": ("flows.cli.rollouts:app", "Record any command that honours a base URL."),
    "doctor": ("flows.cli.doctor:doctor", "Say what is installed and reachable, and the mend."),
    "warm-start": ("flows.cli.warm_start:warm_start", "Make the tiny policy that fine-tuning starts from."),
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

    # So that what a run has started (boxes, servers) is ended with it; a default SIGTERM would leave it behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    app = App(
        name="longbreath",
        help="Turn a language model that is good for two steps into an agent that holds for fifty.",
        help_epilogue=(
            "Exit codes: 0 done; 1 the run failed; 2 bad input; 3 refused; 4 another process holds the run; "
            "130 interrupted. --json prints one object as the last line of standard output; README.md lists its keys."
        ),
        version_flags=["--version"],
        result_action="return_value",
    )
    for name, (where, text) in _COMMANDS.items():
        app.command(where, name=name, help=text)
    sys.exit(app())
