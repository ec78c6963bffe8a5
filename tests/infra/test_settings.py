"""Where the outside world is."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import Settings
from infra.store import LocalStore, StoreError


def test_everything_lies_below_home_by_default(tmp_path: Path) -> None:
    settings = Settings.read(tmp_path, {})
    store = settings.open_store()
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path / "store"
    assert settings.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_environment_names_an_s3_store_and_another_mlflow(tmp_path: Path) -> None:
    environment = {
        "LONGBREATH_STORE": "s3://bucket/deep/prefix",
        "LONGBREATH_S3_ENDPOINT_URL": "http://127.0.0.1:9000",
        "LONGBREATH_MLFLOW_URI": "http://mlflow:5000",
    }
    settings = Settings.read(tmp_path, environment)
    assert settings.tracking_uri == "http://mlflow:5000"
    store = settings.open_store()
    assert store.root == tmp_path / "s3" / "bucket" / "deep" / "prefix"
    assert getattr(store, "uri", None) == "s3://bucket/deep/prefix/"


@pytest.mark.parametrize("address", ["gs://bucket/prefix", "s3:///prefix"])
def test_an_address_that_is_neither_a_folder_nor_s3_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="want a folder, or s3://bucket/prefix"):
        Settings.read(tmp_path, {"LONGBREATH_STORE": address}).open_store()
