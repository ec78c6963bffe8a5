"""Where the outside world is: the store and the MLflow of this installation, from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from infra.store import LocalStore, Store
from infra.store_errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`home` holds everything by default.

    `store` is a folder or 's3://bucket/prefix' (LONGBREATH_STORE). `s3_endpoint_url` names a server other than AWS
    (LONGBREATH_S3_ENDPOINT_URL); keys come from the usual AWS variables. `tracking_uri` is MLflow's
    (LONGBREATH_MLFLOW_URI).
    """

    home: Path
    store: str
    tracking_uri: str
    s3_endpoint_url: str | None = None

    @classmethod
    def read(cls, home: Path, environment: Mapping[str, str]) -> Settings:
        """The settings of an environment (`os.environ`); what it does not say lies below `home`."""
        home = home.absolute()
        return cls(
            home=home,
            store=environment.get("LONGBREATH_STORE") or str(home / "store"),
            tracking_uri=environment.get("LONGBREATH_MLFLOW_URI") or f"sqlite:///{home / 'mlflow.db'}",
            s3_endpoint_url=environment.get("LONGBREATH_S3_ENDPOINT_URL") or None,
        )

    def open_store(self) -> Store:
        """The artifact store. Raises StoreError for an address that is neither a folder nor s3://bucket/prefix."""
        parts = urlsplit(self.store)
        if not parts.scheme:
            return LocalStore(Path(self.store))
        if parts.scheme != "s3" or not parts.netloc:
            raise StoreError(f"store {self.store!r}: want a folder, or s3://bucket/prefix")
        from infra.s3 import S3Store, s3_client

        local = self.home / "s3" / parts.netloc / parts.path.strip("/")
        client = s3_client(self.s3_endpoint_url)
        return S3Store(local, client=client, bucket=parts.netloc, prefix=parts.path)
