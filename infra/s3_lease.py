"""A lock on S3: an object that its holder renews, and that others may take over once it is old.

Ages are measured by the server's clock alone (its Date header less the object's Last-Modified), so clocks of hosts
need not agree. Every write is conditional on the state that was read.
"""

from __future__ import annotations

import json
import socket
import threading
from email.utils import parsedate_to_datetime
from typing import Any

import psutil
from botocore.exceptions import BotoCoreError, ClientError

from infra.run_lock import check_run_id, holder, locked_message
from infra.store_errors import RunLocked, StoreError

ABSENT = {"NoSuchKey", "404", "NotFound"}
REFUSED = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}


def error_code(error: ClientError) -> str:
    """The code of an S3 error: 'NoSuchKey', 'PreconditionFailed', or the HTTP status where there is no name."""
    return str(error.response["Error"]["Code"])


class Lease:
    """Holds `run_id` for this process between `acquire` and `release`."""

    def __init__(self, client: Any, bucket: str, prefix: str, run_id: str, *, lease_s: float) -> None:
        check_run_id(run_id)
        self._client, self._run_id, self._lease_s = client, run_id, lease_s
        self._place = {"Bucket": bucket, "Key": f"{prefix}locks/{run_id}.json"}
        self._etag = ""
        self._lost = ""
        self._done = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name=f"lease-{run_id}", daemon=True)

    def acquire(self) -> None:
        """Take the lease and keep it renewed. Raises RunLocked naming the holder, or what boto3 raises."""
        if not self._write(IfNoneMatch="*"):
            self._take_over()
        self._renewing.start()

    def release(self) -> None:
        """Give the lease back, unless it was lost."""
        self._done.set()
        self._renewing.join()
        if not self._lost:
            self._client.delete_object(**self._place)

    def check(self) -> None:
        """Raises StoreError when the lease was lost while it was held."""
        if self._lost:
            raise StoreError(
                f"run {self._run_id}: the lock was lost while the run went on ({self._lost}); another process may have "
                f"run it too. Published artifacts are whole; run the same command again"
            )

    def _write(self, **condition: str) -> bool:
        try:
            answer = self._client.put_object(**self._place, Body=holder(), **condition)
        except ClientError as error:
            if error_code(error) in REFUSED:
                return False
            raise
        self._etag = answer["ETag"]
        return True

    def _take_over(self) -> None:
        """Take the lease of a dead or silent holder. Raises RunLocked when it lives or another was faster."""
        answer = self._client.get_object(**self._place)
        data = answer["Body"].read()
        now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        expired = (now - answer["LastModified"]).total_seconds() > self._lease_s
        if not (expired or _died_here(data)) or not self._write(IfMatch=answer["ETag"]):
            raise RunLocked(locked_message(self._run_id, data))

    def _renew(self) -> None:
        while not self._done.wait(self._lease_s / 4):
            try:
                if not self._write(IfMatch=self._etag):
                    self._lost = "another process took it over"
                    return
            except (BotoCoreError, ClientError) as error:
                self._lost = f"it could not be renewed: {error}"
                return


def _died_here(data: bytes) -> bool:
    """Whether the holder was a process of this host that is gone."""
    who = json.loads(data)
    return who["host"] == socket.gethostname() and not psutil.pid_exists(who["pid"])
