"""MLflow, made idempotent: one MLflow run a fine-tune, each param, metric row, model version and trace once.

MLflow itself makes a second run for the same name, a second row for the same step and a second version for the same
files; so everything here is looked for by tag or step before it is made, and a stage may be run again at will.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mlflow import MlflowClient

RunEnd = Literal["FINISHED", "FAILED", "KILLED"]

RUN_TAG = "longbreath.run_id"
_RUN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SQLITE = "sqlite:///"


class TrackingError(RuntimeError):
    """MLflow could not do its part, or was asked for what contradicts what it holds. Says the mend."""


@contextmanager
def tracking_errors(doing: str, uri: str) -> Iterator[None]:
    """Turn what MLflow raises into a TrackingError that says what was being done and where."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise TrackingError(
            f"MLflow at {uri}: {doing} failed: {error}. Check the address (sqlite:////FOLDER/FILE or http://HOST:PORT) "
            f"and that the server is up; then run the same command again, nothing is logged twice"
        ) from error


def mlflow_client(uri: str) -> MlflowClient:
    """A client that says nothing to anyone else, on the terminal or by telemetry. Importing MLflow takes seconds.

    Raises TrackingError when MLflow cannot use `uri`.
    """
    for name, value in (
        ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ("DO_NOT_TRACK", "true"),
        ("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false"),
    ):
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for noisy in ("mlflow.store.db.utils", "mlflow.tracing.export.async_export_queue", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with tracking_errors("connecting", uri):
        if uri.startswith(_SQLITE):
            _sqlite_folder(uri).mkdir(parents=True, exist_ok=True)
        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _sqlite_folder(uri: str) -> Path:
    path = Path(uri.removeprefix(_SQLITE))
    if not path.is_absolute():
        raise TrackingError(
            f"tracking uri {uri!r} is relative to wherever a process starts; want sqlite:////FOLDER/FILE"
        )
    return path.parent


class Tracking:
    """One experiment of an MLflow store. `uri`: 'sqlite:////folder/mlflow.db' or the address of a server.

    With SQLite, files go to `mlartifacts` beside the database; a server decides itself.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        self.uri, self.experiment = uri, experiment
        self.client = mlflow_client(uri)
        with tracking_errors(f"opening experiment {experiment!r}", uri):
            self.experiment_id = self._find_or_create()

    def _find_or_create(self) -> str:
        from mlflow.exceptions import MlflowException

        place = (_sqlite_folder(self.uri) / "mlartifacts").as_uri() if self.uri.startswith(_SQLITE) else None
        found = self.client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                return str(self.client.create_experiment(self.experiment, artifact_location=place))
            except MlflowException:  # another process may just have made it; else this second look fails too
                found = self.client.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise TrackingError(
                f"experiment {self.experiment!r} is deleted; restore it with `mlflow experiments restore -x "
                f"{found.experiment_id}`, or choose another name"
            )
        return str(found.experiment_id)

    def start(
        self, run_key: str, *, name: str, params: Mapping[str, object], tags: Mapping[str, str] | None = None
    ) -> TrackedRun:
        """The MLflow run of `run_key`, made if there is none, continued if there is.

        Params are logged once; raises TrackingError when the run holds another value, for then it is another run.
        """
        if not _RUN_KEY.fullmatch(run_key):
            raise TrackingError(f"run key {run_key!r}: want letters, digits, '.', '_', '-', at most 128")
        with tracking_errors(f"opening run {run_key}", self.uri):
            run = self._find(run_key) or self.client.create_run(
                self.experiment_id, tags={RUN_TAG: run_key}, run_name=name
            )
            if run.info.status != "RUNNING":
                self.client.update_run(run.info.run_id, status="RUNNING")
            tracked = TrackedRun(self, run_key, run.info.run_id, run.info.artifact_uri)
            tracked._log_params(run.data.params, {key: str(value) for key, value in params.items()})
            tracked.tag(tags or {})
        return tracked

    def _find(self, run_key: str) -> Any:
        found = self.client.search_runs(
            [self.experiment_id], f"tags.`{RUN_TAG}` = '{run_key}'", max_results=1, order_by=["start_time ASC"]
        )
        return found[0] if found else None


class TrackedRun:
    """One MLflow run. Every method may be called again with the same arguments without a trace."""

    def __init__(self, tracking: Tracking, run_key: str, mlflow_run_id: str, artifact_uri: str) -> None:
        self.tracking, self.run_key = tracking, run_key
        self.mlflow_run_id, self.artifact_uri = mlflow_run_id, artifact_uri
        self._steps: dict[str, set[int]] = {}

    def _log_params(self, logged: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        odd = {key: (logged[key], value) for key, value in wanted.items() if logged.get(key, value) != value}
        if odd:
            key, (old, new) = next(iter(odd.items()))
            raise TrackingError(
                f"run {self.run_key} was logged with {key} = {old!r} and is now given {new!r} ({len(odd)} such "
                f"params); params of a run never change: use the settings it began with, or start another run"
            )
        fresh = [Param(key, value) for key, value in wanted.items() if key not in logged]
        if fresh:
            self.tracking.client.log_batch(self.mlflow_run_id, params=fresh)

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags: lineage, verdict, code version. A later value replaces an earlier one. Raises TrackingError."""
        from mlflow.entities import RunTag

        with tracking_errors(f"tagging run {self.run_key}", self.tracking.uri):
            if tags:
                self.tracking.client.log_batch(self.mlflow_run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def metrics(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Log numbers at a step (`at_s`: seconds since 1970). A metric that has this step is left as it is.

        Raises TrackingError.
        """
        from mlflow.entities import Metric

        with tracking_errors(f"logging metrics of run {self.run_key}", self.tracking.uri):
            fresh = [key for key in values if step not in self._logged_steps(key)]
            rows = [Metric(key, values[key], int(at_s * 1000), step) for key in fresh]
            if rows:
                self.tracking.client.log_batch(self.mlflow_run_id, metrics=rows)
        for key in fresh:
            self._steps[key].add(step)

    def _logged_steps(self, key: str) -> set[int]:
        if key not in self._steps:
            history = self.tracking.client.get_metric_history(self.mlflow_run_id, key)
            self._steps[key] = {row.step for row in history}
        return self._steps[key]

    def artifact(self, path: Path, folder: str = "") -> None:
        """Log a file, or all files below a folder, into `folder` of the run; again: replaced. Raises TrackingError."""
        if not path.exists():
            raise TrackingError(f"artifact {path} of run {self.run_key} is not there; make it before logging it")
        with tracking_errors(f"logging {path.name} to run {self.run_key}", self.tracking.uri):
            if path.is_dir():
                self.tracking.client.log_artifacts(self.mlflow_run_id, str(path), folder or None)
            else:
                self.tracking.client.log_artifact(self.mlflow_run_id, str(path), folder or None)

    def finish(self, end: RunEnd = "FINISHED") -> None:
        """Say how the run ended; `Tracking.start` opens it again. Raises TrackingError."""
        with tracking_errors(f"closing run {self.run_key}", self.tracking.uri):
            self.tracking.client.set_terminated(self.mlflow_run_id, status=end)
