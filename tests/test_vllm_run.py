"""A run on a real vLLM server: every swap of weights takes, and the trainer agrees to the last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient
from vllm_server import untied, vllm_serving

LONGBREATH = Path(sys.executable).parent / "longbreath"
TINY = Path(__file__).parents[1] / "training/assets/tiny"
SMALL = (
    "iterations=3",
    "pool.train_tasks=12",
    "pool.held_out_tasks=6",
    "pool.max_horizon=4",
    "curriculum.tasks_per_iteration=4",
    "curriculum.group_size=4",
    "training.max_engine_gap=0.001",
)


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_run_on_a_vllm_server_trains_on_what_the_server_sampled(tmp_path):
    policy = untied(TINY, tmp_path / "policy")
    with vllm_serving(policy, tmp_path / "vllm.txt") as url:
        settings = (*SMALL, "policy.digest=", f"policy.folder={policy}", "engine.kind=vllm", f"engine.url={url}")
        flags = [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(
            [LONGBREATH, "finetune", *flags, "--home", tmp_path / "home", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["policy_version"], result["held_out"]["gain"]["n"]) == (3, 6)
    client = MlflowClient(f"sqlite:///{tmp_path}/home/mlflow.db")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    gaps = [row.value for row in client.get_metric_history(run.info.run_id, "train/engine_gap_max")]
    assert len(gaps) == 3 - sum(share == 1 for share in result["zero_gradient_share"])
    assert 0 < max(gaps) < 1e-3
    assert (tmp_path / "vllm.txt").read_text().count("POST /collective_rpc") == 4  # the start, then each policy
