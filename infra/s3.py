"""The artifact store on S3: the same layout and promises as on disk, with a verified local copy of what is used.

The commit marker is a conditional PUT (If-None-Match), so the server must honour those: this is tried out before
the first commit, because some servers ignore them in silence. Objects are named by content, so an upload that was
cut off leaves files that the next upload of the same content completes.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra import staging
from infra.s3_lease import ABSENT, REFUSED, Lease, error_code
from infra.store import Store
from infra.store_errors import StoreError, os_errors


def s3_client(endpoint_url: str | None = None, *, session: boto3.Session | None = None) -> Any:
    """A boto3 S3 client. `endpoint_url` is for servers other than AWS; keys and region come from the session.

    Without a session they come from the usual AWS variables and files.
    """
    config = Config(connect_timeout=10, read_timeout=120, retries={"mode": "standard", "max_attempts": 5})
    return (session or boto3.Session()).client("s3", endpoint_url=endpoint_url, config=config)


class S3Store(Store):
    """A store below `prefix` in a bucket. `root` is a local folder for temporary files and verified copies.

    A lock is a lease of `lease_s` seconds, renewed while it is held; a dead holder's is free after that time, and at
    once for a process on the same host.
    """

    def __init__(self, root: Path, *, client: Any, bucket: str, prefix: str = "", lease_s: float = 60.0) -> None:
        self.root, self._client, self._bucket = root.absolute(), client, bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._lease_s = lease_s
        self._conditional_writes_hold = False

    @property
    def uri(self) -> str:
        """Where the store is, for people."""
        return f"s3://{self._bucket}/{self._prefix}"

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            with os_errors(doing, self.root):
                yield
        except (Boto3Error, BotoCoreError, ClientError) as error:
            raise StoreError(
                f"store {self.uri}: {doing} failed: {error}; check that the server is up, the endpoint, the bucket and "
                f"the keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), then run the same command again. "
                f"Everything published before is intact"
            ) from error

    def _read_manifest(self, key: str) -> bytes | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=f"{self._prefix}manifests/{key}.json")
        except ClientError as error:
            if error_code(error) in ABSENT:
                return None
            raise
        data: bytes = answer["Body"].read()
        return data

    def _create(self, name: str, data: bytes) -> bool:
        """PUT if there is none; whether it was made. A retry of a PUT whose answer was lost says False."""
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
        except ClientError as error:
            if error_code(error) in REFUSED:
                return False
            raise
        return True

    def _commit(self, key: str, data: bytes) -> bool:
        self._check_conditional_writes()
        return self._create(f"manifests/{key}.json", data)

    def _check_conditional_writes(self) -> None:
        if self._conditional_writes_hold:
            return
        name = f"tmp/probe-{secrets.token_hex(8)}"
        self._create(name, b"first")
        overwritten = self._create(name, b"second")
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        if overwritten:
            raise StoreError(
                f"store {self.uri}: the server ignores If-None-Match, so two writers could both win; use one that "
                f"honours it (AWS S3, MinIO, SeaweedFS), or a local store"
            )
        self._conditional_writes_hold = True

    def _put(self, made: Path, uri: str) -> None:
        files = [p for p in sorted(made.rglob("*")) if p.is_file()] if made.is_dir() else [made]
        for path in files:
            key = self._key(uri, path.relative_to(made).as_posix() if made.is_dir() else "")
            self._client.upload_file(str(path), self._bucket, key, ExtraArgs={"ChecksumAlgorithm": "SHA256"})
        staging.move_into_place(made, self.root / uri)

    def _key(self, uri: str, inside: str) -> str:
        return f"{self._prefix}{uri}/{inside}" if inside else f"{self._prefix}{uri}"

    def _list(self, uri: str) -> list[str]:
        """Keys of the file `uri`, or of all files of the folder `uri`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + uri)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return [key for key in keys if key == self._prefix + uri or key.startswith(f"{self._prefix}{uri}/")]

    def _fetch(self, uri: str) -> tuple[Path, str]:
        place = self.root / uri
        if place.exists():
            got = staging.digest_of_content(place)
            if place.name.startswith(got):
                return place, got
            shutil.rmtree(place) if place.is_dir() else place.unlink()  # our copy broke; the original may be whole
        with staging.staging_folder(self.root) as folder:
            made = folder / place.name
            self._download(uri, made)
            got = staging.digest_of_content(made)
            if place.name.startswith(got):
                staging.move_into_place(made, place)
        return place, got

    def _download(self, uri: str, made: Path) -> None:
        keys = self._list(uri)
        if not keys:
            raise FileNotFoundError(f"{self.uri}{uri}")
        for key in keys:
            path = made / key.removeprefix(f"{self._prefix}{uri}").removeprefix("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._client.download_file(self._bucket, key, str(path))
            except ClientError as error:
                if error_code(error) in ABSENT:
                    raise FileNotFoundError(f"{self.uri}{uri}") from error  # just moved to quarantine
                raise

    def _quarantine(self, key: str, uri: str | None, reason: str) -> str:
        folder = f"quarantine/{key[:12]}.{secrets.token_hex(4)}/"
        self._client.put_object(
            Bucket=self._bucket, Key=f"{self._prefix}{folder}reason.txt", Body=f"{reason}\n".encode()
        )
        for source in [f"{self._prefix}manifests/{key}.json", *(self._list(uri) if uri else ())]:
            self._move(source, self._prefix + folder + source.removeprefix(self._prefix))
        return self.uri + folder

    def _move(self, source: str, target: str) -> None:
        try:
            self._client.copy({"Bucket": self._bucket, "Key": source}, self._bucket, target)
        except ClientError as error:
            if error_code(error) in ABSENT:
                return  # another process has just moved it
            raise
        self._client.delete_object(Bucket=self._bucket, Key=source)

    def lock(self, run_id: str) -> AbstractContextManager[None]:
        return self._lease(run_id)

    @contextmanager
    def _lease(self, run_id: str) -> Iterator[None]:
        lease = Lease(self._client, self._bucket, self._prefix, run_id, lease_s=self._lease_s)
        with self._errors(f"locking run {run_id}"):
            self._check_conditional_writes()
            lease.acquire()
        try:
            yield
        finally:
            with self._errors(f"unlocking run {run_id}"):
                lease.release()
        lease.check()
