"""Does the tiny policy learn through an unmodified harness as it does through our own? Two runs with one plan.

    python tests/benchmarks/harness_learning.py --out tests/benchmarks/results/harness_learning.json

Each run is `longbreath finetune --preset tiny` with fewer and shorter tasks: a policy that knows only the protocol of
`tool_loop`, rolled out by mini-SWE-agent in the box with a template that says the same words, and by `tool_loop`.
Kept: the pass rate of the training rollouts of each iteration, and held-out success before and after, paired by task.
A mini-SWE-agent start costs about 5 CPU seconds, so the run under it takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LONGBREATH = Path(sys.executable).parent / "longbreath"
HARNESSES = ("tool_loop", "mini_swe_agent")


def settings(args: argparse.Namespace) -> list[str]:
    """The plan, the same for both."""
    plan = {
        "iterations": args.iterations,
        "pool.train_tasks": args.train_tasks,
        "pool.held_out_tasks": args.held_out_tasks,
        "pool.max_horizon": args.max_horizon,
        "benchmark.bands": json.dumps([args.max_horizon]),
        "curriculum.tasks_per_iteration": args.tasks,
        "curriculum.group_size": args.group,
        "rollouts.concurrency": args.concurrency,
    }
    return [word for name, value in plan.items() for word in ("--set", f"{name}={value}")]


def pass_rates(home: Path, run_id: str) -> list[float]:
    """The pass rate of each iteration's training rollouts, as the run noted it in MLflow."""
    from mlflow import MlflowClient

    from flows.home import Home

    client = MlflowClient(tracking_uri=Home(home).mlflow_uri)
    (run,) = client.search_runs(
        [e.experiment_id for e in client.search_experiments()], f"attributes.run_name = '{run_id}'"
    )
    history = client.get_metric_history(run.info.run_id, "rollouts/pass_rate")
    return [round(point.value, 4) for point in sorted(history, key=lambda point: point.step)]


def one_run(harness: str, args: argparse.Namespace) -> dict[str, Any]:
    """One fine-tuning run under `harness`."""
    with tempfile.TemporaryDirectory() as scratch:
        home = args.home / harness if args.home is not None else Path(scratch)
        words = ["finetune", "--preset", "tiny", "--set", f"rollouts.harness={harness}", *settings(args)]
        command = [str(LONGBREATH), *words, "--home", str(home), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result = json.loads(done.stdout.splitlines()[-1])
        rates = pass_rates(home, result["run_id"])
    kept = ("held_out", "rollouts", "zero_gradient_share", "promoted", "wall_s", "stage_s")
    return {"pass_rate_by_iteration": rates, **{name: result[name] for name in kept}}


def main() -> None:
    """Both runs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--group", type=int, default=6)
    parser.add_argument("--train-tasks", type=int, default=24)
    parser.add_argument("--held-out-tasks", type=int, default=30)
    parser.add_argument("--max-horizon", type=int, default=6)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--home", type=Path, help="keep the runs there, one folder each, so that a killed one goes on")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(HARNESSES))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    plan = {k: v for k, v in vars(args).items() if k not in ("home", "only", "out")}
    runs = {harness: one_run(harness, args) for harness in args.only}
    text = json.dumps({"plan": plan, "load": os.getloadavg(), "runs": runs}, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
