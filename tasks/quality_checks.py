"""Data quality before training: one row a trajectory, a Great Expectations suite over the rows, fail closed.

The record types refuse most of this when they are made; the suite asks again of what was read back from the store,
for the whole batch, and writes down what it asked (Data Docs).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.types import Group, Judged, Trajectory, Verdict

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
_NAMED_ROWS = 5
_STATUSES = ("completed", "budget_exhausted", "agent_fault")


class QualityError(ValueError):
    """Trajectories that must not be trained on. The message names the checks, the rows and the Data Docs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityFailure:
    """A check that failed: what it asks, how many rows break it, and the first few of them by rollout id."""

    check: str
    num_rows: int
    rollout_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What was asked of how many rows, and what failed."""

    num_rows: int
    num_checks: int
    failures: tuple[QualityFailure, ...]

    @property
    def passed(self) -> bool:
        """Whether every check held for every row."""
        return not self.failures


def _tokens(trajectory: Trajectory) -> dict[str, float]:
    """Token counts and extremes over the trainable segments; where there are none, the rollout's own versions."""
    sampled = [s for chain in trajectory.chains for s in chain.segments if s.trainable]
    logprobs = [x for s in sampled for x in s.logprobs]
    finite = [x for x in logprobs if math.isfinite(x)]
    return {
        "num_trained_ids": sum(len(s.ids) for s in sampled),
        "num_logprobs": len(logprobs),
        "num_bad_logprobs": len(logprobs) - len(finite),
        "logprob_max": max(finite, default=0.0),
        "logprob_min": min(finite, default=0.0),
        "id_min": min((i for s in sampled for i in s.ids), default=0),
        "segment_version_min": min((s.policy_version for s in sampled), default=trajectory.policy_versions[0]),
        "segment_version_max": max((s.policy_version for s in sampled), default=trajectory.policy_versions[1]),
    }


def _row(trajectory: Trajectory, group: Group, judged: Sequence[Judged], rewards: set[float]) -> dict[str, Any]:
    verdict = judged[0].result if judged and isinstance(judged[0].result, Verdict) else None
    tokens = _tokens(trajectory)
    acted = bool(trajectory.turns) or trajectory.final_payload is not None
    gates = [gate.outcome for gate in verdict.gates] if verdict is not None else []
    return {
        "rollout_id": trajectory.rollout_id,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "status": trajectory.status,
        "num_turns": len(trajectory.turns),
        "usage_turns": trajectory.usage.turns,
        "foreign_chains": sum(c.rollout_id != trajectory.rollout_id for c in trajectory.chains),
        **tokens,
        # One that a budget or a fault of its own stopped before its first word has none, and its reward still counts.
        "acted_unrecorded": acted and not tokens["num_trained_ids"],
        "usage_completion_tokens": trajectory.usage.completion_tokens,
        "version_low": trajectory.policy_versions[0],
        "version_high": trajectory.policy_versions[1],
        "num_verdicts": len(judged),
        "judged_task_id": judged[0].task_id if judged else None,
        "reward": verdict.reward if verdict is not None else None,
        "paid_despite_gate": verdict is not None and "failed" in gates and verdict.reward > 0,
        "num_gates": len(gates),
        "group_members": len(group.members),
        "group_excess": max(0, len(group.members) - group.requested_size),
        "group_mixed": len(rewards) > 1,
    }


def trajectory_rows(groups: Sequence[Group], judged: Sequence[Judged]) -> pd.DataFrame:
    """One row a member of a group. A rollout whose verdict is missing or ours has no reward; see the suite."""
    import pandas as pd

    verdicts: dict[str, list[Judged]] = {}
    for one in judged:
        verdicts.setdefault(one.rollout_id, []).append(one)
    rows: list[dict[str, Any]] = []
    for group in groups:
        rewards = {j.reward for m in group.members for j in verdicts.get(m.rollout_id, []) if j.reward is not None}
        rows += [_row(member, group, verdicts.get(member.rollout_id, []), rewards) for member in group.members]
    return pd.DataFrame(rows)


def _expectations(trained_on: int) -> dict[str, Any]:
    """What each check asks, in words -> the expectation. `trained_on`: the newest policy version there can be."""
    import great_expectations.expectations as gxe

    def within(column: str, low: float | None, high: float | None) -> Any:
        return gxe.ExpectColumnValuesToBeBetween(column=column, min_value=low, max_value=high)

    def equal(a: str, b: str) -> Any:
        return gxe.ExpectColumnPairValuesToBeEqual(column_A=a, column_B=b)

    def ordered(high: str, low: str) -> Any:
        return gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A=high, column_B=low, or_equal=True)

    return {
        "there is at least one trajectory": gxe.ExpectTableRowCountToBeBetween(min_value=1),
        "a rollout stands once": gxe.ExpectColumnValuesToBeUnique(column="rollout_id"),
        "a status that trains": gxe.ExpectColumnValuesToBeInSet(column="status", value_set=list(_STATUSES)),
        "one verdict": within("num_verdicts", 1, 1),
        "the verdict is of the same task": equal("task_id", "judged_task_id"),
        "a verdict has gates": within("num_gates", 1, None),
        "a reward": gxe.ExpectColumnValuesToNotBeNull(column="reward"),
        "a reward in [0, 1]": within("reward", 0, 1),
        "no reward past a failed gate": gxe.ExpectColumnValuesToBeInSet(column="paid_despite_gate", value_set=[False]),
        "one that acted or handed in has sampled tokens": gxe.ExpectColumnValuesToBeInSet(
            column="acted_unrecorded", value_set=[False]
        ),
        "a log-probability for every sampled id": equal("num_trained_ids", "num_logprobs"),
        "log-probabilities are finite": within("num_bad_logprobs", 0, 0),
        "log-probabilities are at most 0": within("logprob_max", None, 1e-6),
        "ids are not negative": within("id_min", 0, None),
        "no more tokens trained than were sampled": ordered("usage_completion_tokens", "num_trained_ids"),
        "chains are the rollout's own": within("foreign_chains", 0, 0),
        "as many turns as were counted": equal("num_turns", "usage_turns"),
        "policy versions in order": ordered("version_high", "version_low"),
        "segments are of versions the rollout names (oldest)": ordered("segment_version_min", "version_low"),
        "segments are of versions the rollout names (newest)": ordered("version_high", "segment_version_max"),
        "no policy version from the future": within("version_high", 0, trained_on),
        "a group has no more members than were asked for": within("group_excess", 0, 0),
    }


def _failure(check: str, result: Mapping[str, Any]) -> QualityFailure:
    found = result.get("partial_unexpected_index_list") or []
    ids = tuple(dict.fromkeys(str(row["rollout_id"]) for row in found))
    return QualityFailure(check=check, num_rows=int(result.get("unexpected_count") or 0), rollout_ids=ids[:_NAMED_ROWS])


def validate_rows(rows: pd.DataFrame, *, newest_version: int, docs: Path) -> QualityReport:
    """Ask the suite of the rows and write Data Docs below `docs`. A check that cannot be computed has failed."""
    import great_expectations as gx
    from great_expectations.checkpoint import UpdateDataDocsAction
    from great_expectations.data_context.types.base import ProgressBarsConfig

    checks = _expectations(newest_version)
    for check, expectation in checks.items():
        expectation.meta = {"check": check}
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site(site_name="quality", site_config=_site(docs))
    data = context.data_sources.add_pandas("rollouts").add_dataframe_asset("trajectories")
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(
            name="trajectories",
            data=data.add_batch_definition_whole_dataframe("all"),
            suite=context.suites.add(gx.ExpectationSuite(name="trajectories", expectations=list(checks.values()))),
        )
    )
    checkpoint = gx.Checkpoint(
        name="before_training",
        validation_definitions=[definition],
        actions=[UpdateDataDocsAction(name="docs", site_names=["quality"])],
        result_format={
            "result_format": "SUMMARY",
            "unexpected_index_column_names": ["rollout_id"],
            "partial_unexpected_count": 4 * _NAMED_ROWS,
        },
    )
    frame = rows.reset_index(drop=True)
    ran = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    results = [result for run in ran.run_results.values() for result in run.results]
    answers = {r.expectation_config.meta["check"]: r for r in results}
    # A check without an answer has failed too.
    bad = {check: answers.get(check) for check in checks if check not in answers or not answers[check].success}
    failures = tuple(_failure(check, answer.result if answer is not None else {}) for check, answer in bad.items())
    return QualityReport(num_rows=len(rows), num_checks=len(checks), failures=failures)


def _site(folder: Path) -> dict[str, Any]:
    return {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
    }


def refuse(report: QualityReport, docs: Path) -> None:
    """Raise QualityError when a check failed, naming the rows and how to go on."""
    if report.passed:
        return
    lines = [
        f"- {f.check}: {f.num_rows} of {report.num_rows} rows"
        + (
            f" ({', '.join(f.rollout_ids)}{', ...' if f.num_rows > len(f.rollout_ids) else ''})"
            if f.rollout_ids
            else ""
        )
        for f in report.failures
    ]
    raise QualityError(
        f"{len(report.failures)} of {report.num_checks} data checks failed; nothing was trained on.\n"
        + "\n".join(lines)
        + f"\nSee {docs / 'index.html'}; mend the stage that wrote these rows, then run the same command again."
    )


def check_trajectories(
    groups: Sequence[Group], judged: Sequence[Judged], *, newest_version: int, docs: Path
) -> QualityReport:
    """Check a batch and fail closed. Raises QualityError; Data Docs are written to `docs` either way.

    Members without a verdict of their own (the grading box failed: our fault) are no training data and are not asked
    about; a member with no verdict at all is.
    """
    ours = Counter(j.rollout_id for j in judged if not isinstance(j.result, Verdict))
    rows = trajectory_rows(groups, judged)
    if ours and len(rows):
        rows = rows[~rows["rollout_id"].isin(set(ours))]
    report = validate_rows(rows, newest_version=newest_version, docs=docs)
    refuse(report, docs)
    return report
