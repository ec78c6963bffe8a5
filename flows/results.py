"""The result of a fine-tuning run: the documented keys of `longbreath finetune --json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.report import RunRecord
from training.evaluation.comparison import Comparison
from training.evaluation.estimates import Estimate
from training.evaluation.recorded import recorded_of
from training.evaluation.report_data import ReportData


def result_of(
    run_id: str,
    run: RunRecord,
    data: ReportData,
    *,
    report: Path,
    wall_s: float,
    stage_s: Mapping[str, float],
    overhead_s: float,
    model_uri: str,
    home: Path,
    mlflow_uri: str,
) -> dict[str, Any]:
    """Keys: run_id, wall_s, held_out {before, after {mean, low, high, n}, gain {mean, low, high, n}, p_value},
    greedy (as held_out; null unless benchmark.greedy), by_horizon [{horizons, before, after, gain}],
    rollouts {training, probes, uniform_equivalent (null where nothing can be said)}, zero_gradient_share
    [per iteration], recorded {chains {cause of the fork, or root: how many}, tokens_in_chains, untrained_tokens} of the
    training rollouts, policy_version, model_uri, report_path, promoted, verdict [reasons], stage_s {stage: seconds},
    orchestration_s, commands {mlflow, prefect}.
    """
    return {
        "run_id": run_id,
        "wall_s": round(wall_s, 1),
        "held_out": _paired(data.comparison),
        "greedy": None if data.greedy is None else _paired(data.greedy),
        "by_horizon": [
            {
                "horizons": [band.low, band.high],
                "before": plain_estimate(band.before),
                "after": plain_estimate(band.after),
                "gain": plain_estimate(band.gain),
            }
            for band in data.comparison.by_band
        ],
        "rollouts": {
            "training": data.spend.training,
            "probes": data.spend.probes,
            "uniform_equivalent": data.spend.uniform_equivalent,
        },
        "zero_gradient_share": [round(r.zero_gradient.zero_gradient_share, 4) for r in run.iterations],
        "recorded": _recorded(run),
        "policy_version": run.after.policy.version,
        "model_uri": model_uri,
        "report_path": str(report),
        "promoted": run.verdict.promote,
        "verdict": list(run.verdict.reasons),
        "stage_s": {name: round(value, 1) for name, value in stage_s.items()},
        "orchestration_s": round(overhead_s, 2),
        "commands": {
            "mlflow": _mlflow_page(mlflow_uri),
            "prefect": f"PREFECT_HOME={home / 'prefect'} prefect server start",
        },
    }


def _recorded(run: RunRecord) -> dict[str, Any]:
    recorded = recorded_of(m for r in run.iterations for g in r.groups for m in g.members)
    return {
        "chains": {c.cause: c.chains for c in recorded.chains},
        "tokens_in_chains": sum(c.tokens for c in recorded.chains),
        "untrained_tokens": recorded.untrained_tokens,
    }


def _paired(comparison: Comparison) -> dict[str, Any]:
    return {
        "before": plain_estimate(comparison.before),
        "after": plain_estimate(comparison.after),
        "gain": plain_estimate(comparison.gain),
        "p_value": comparison.p_value,
    }


def _mlflow_page(uri: str) -> str:
    """How to open MLflow's pages: a server's address, or the command that serves a database."""
    return uri if uri.startswith(("http://", "https://")) else f"mlflow ui --backend-store-uri {uri}"


def plain_estimate(estimate: Estimate) -> dict[str, float]:
    """An interval as JSON, rounded to four digits."""
    return {
        "mean": round(estimate.mean, 4),
        "low": round(estimate.low, 4),
        "high": round(estimate.high, 4),
        "n": estimate.n,
    }
