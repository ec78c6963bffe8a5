"""The model registry: versions by content, and the aliases `candidate`, `champion` and `previous`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from infra.ledger import Ledger, Promotion
from infra.tracking import TrackedRun, TrackingError, mlflow_client, tracking_errors

Alias = Literal["candidate", "champion", "previous"]

DIGEST_TAG = "longbreath.sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Registry:
    """The versions of one model. Registering the same content again answers its version; aliases move one at a time.

    `ledger` is the file that keeps every promotion and rollback.
    """

    def __init__(self, uri: str, model: str, *, ledger: Path) -> None:
        self.uri, self.model = uri, model
        self._client = mlflow_client(uri)
        self._ledger = Ledger(ledger)

    def register(self, run: TrackedRun, folder: Path, *, sha256: str, tags: Mapping[str, str] | None = None) -> int:
        """Upload an HF model folder to the run and make it a version; answers the version that has `sha256` if any.

        `sha256` is `digest_folder(folder)`. Raises TrackingError.
        """
        if not _DIGEST.fullmatch(sha256):
            raise TrackingError(f"model digest {sha256!r}: want the 64 hex digits of digest_folder")
        if not (folder / "config.json").is_file():
            raise TrackingError(f"{folder} has no config.json; want a model folder as `save_pretrained` writes it")
        with tracking_errors(f"registering {self.model} {sha256[:12]}", self.uri):
            self._create_model()
            found = self.version_of(sha256)
            if found is not None:
                return found
            place = f"models/{sha256[:12]}"
            run.artifact(folder, place)
            version = self._client.create_model_version(
                self.model,
                source=f"{run.artifact_uri}/{place}",
                run_id=run.mlflow_run_id,
                tags={**(tags or {}), DIGEST_TAG: sha256},
            )
        return int(version.version)

    def _create_model(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(self.model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def version_of(self, sha256: str) -> int | None:
        """The version with this content, None when there is none. Raises TrackingError."""
        with tracking_errors(f"looking for {self.model} {sha256[:12]}", self.uri):
            found = self._client.search_model_versions(f"name = '{self.model}' and tags.`{DIGEST_TAG}` = '{sha256}'")
        return min((int(version.version) for version in found), default=None)

    def aliases(self) -> dict[str, int]:
        """All aliases and their versions; empty when the model is not registered. Raises TrackingError."""
        from mlflow.exceptions import MlflowException

        with tracking_errors(f"reading aliases of {self.model}", self.uri):
            try:
                model = self._client.get_registered_model(self.model)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return {}
                raise
        return {alias: int(version) for alias, version in model.aliases.items()}

    def tags(self, version: int) -> dict[str, str]:
        """The tags of a version. Raises TrackingError when it is not registered."""
        return dict(self._version(version).tags)

    def set_candidate(self, version: int) -> None:
        """Point `candidate` at a version. Raises TrackingError."""
        self._version(version)
        self._point("candidate", version)

    def promote(self, version: int, *, reason: str, at_s: float) -> Promotion:
        """Make a version the champion, and the champion the previous one. Promoting the champion changes nothing.

        `at_s`: seconds since 1970. Raises TrackingError when the version is not registered.
        """
        self._version(version)
        with self._ledger.held():
            rows = self._settled()
            aliases = self.aliases()
            if aliases.get("champion") != version:
                return self._move("promote", version, aliases.get("champion"), reason, at_s, rows)
            if rows and rows[-1].champion == version:
                return rows[-1]
            # The alias was set by hand: put that on record.
            return self._move("promote", version, aliases.get("previous"), reason, at_s, rows)

    def rollback(self, *, reason: str, at_s: float) -> Promotion:
        """Exchange champion and previous; a second one undoes the first. Raises TrackingError without a previous."""
        with self._ledger.held():
            rows = self._settled()
            aliases = self.aliases()
            if "previous" not in aliases:
                raise TrackingError(
                    f"{self.model} has no previous champion to go back to (aliases: {aliases or 'none'}); promote "
                    f"another version with `longbreath promote`"
                )
            return self._move("rollback", aliases["previous"], aliases.get("champion"), reason, at_s, rows)

    def history(self) -> list[Promotion]:
        """All finished moves, oldest first. Raises TrackingError."""
        return [row for row in self._ledger.read() if row.state == "done"]

    def download(self, version: int, target: Path) -> Path:
        """The version's model folder, copied below `target`. Raises TrackingError."""
        from mlflow.artifacts import download_artifacts

        target.mkdir(parents=True, exist_ok=True)
        source = self._version(version).source
        with tracking_errors(f"downloading {self.model} version {version}", self.uri):
            return Path(download_artifacts(artifact_uri=source, dst_path=str(target), tracking_uri=self.uri))

    def _move(
        self,
        action: Literal["promote", "rollback"],
        champion: int,
        previous: int | None,
        reason: str,
        at_s: float,
        rows: list[Promotion],
    ) -> Promotion:
        number = rows[-1].number + 1 if rows else 1
        begun = Promotion(
            number=number,
            action=action,
            champion=champion,
            previous=previous,
            reason=reason,
            at_s=at_s,
            state="begun",
        )
        self._ledger.append(begun)
        return self._finish(begun)

    def _settled(self) -> list[Promotion]:
        """The ledger after finishing a move that was cut short."""
        rows = self._ledger.read()
        if rows and rows[-1].state == "begun":
            rows.append(self._finish(rows[-1]))
        return rows

    def _finish(self, begun: Promotion) -> Promotion:
        self._point("previous", begun.previous)
        self._point("champion", begun.champion)
        done = replace(begun, state="done")
        self._ledger.append(done)
        return done

    def _point(self, alias: Alias, version: int | None) -> None:
        with tracking_errors(f"moving alias {alias} of {self.model}", self.uri):
            if version is not None:
                self._client.set_registered_model_alias(self.model, alias, str(version))
            elif alias in self.aliases():
                self._client.delete_registered_model_alias(self.model, alias)

    def _version(self, version: int) -> Any:
        from mlflow.exceptions import MlflowException

        with tracking_errors(f"reading {self.model} version {version}", self.uri):
            try:
                return self._client.get_model_version(self.model, str(version))
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                there = sorted(int(v.version) for v in self._client.search_model_versions(f"name = '{self.model}'"))
                raise TrackingError(f"{self.model} has no version {version}; there are {there}") from error
