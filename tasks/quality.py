"""The quality stage: trajectories and verdicts are checked before they train; a batch that fails stops the run."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from infra import records
from infra.manifest import Manifest
from tasks.judge import read_judged
from tasks.rollouts import read_groups
from tasks.stage import Desk, Stage, Work

QUALITY = Stage(name="quality", version=1, kind="quality")
DOCS, REPORT = "docs", "report.json"


def check_quality(
    desk: Desk, rollouts: Manifest, judged: Manifest, *, newest_version: int, iteration: int | None
) -> Work:
    """Check a batch with Great Expectations: a folder of Data Docs and the report.

    Raises QualityError, which names rows and Data Docs; these then stay in the work's scratch folder.
    """

    def make(out: Path, scratch: Path) -> int:
        import great_expectations  # noqa: F401 - sets its loggers' levels, which are then lowered below

        from tasks.quality_checks import check_trajectories

        logging.getLogger("great_expectations.data_context.types.base").setLevel(logging.WARNING)
        desk.progress.begin("check data", iteration=iteration, total=0)
        docs = scratch / DOCS
        report = check_trajectories(
            read_groups(desk, rollouts), read_judged(desk, judged), newest_version=newest_version, docs=docs
        )
        out.mkdir()
        shutil.move(docs, out / DOCS)
        (out / REPORT).write_bytes(records.to_json(report))
        return report.num_rows

    return Work(stage=QUALITY, parents=(rollouts, judged), section=newest_version, make=make, iteration=iteration)
