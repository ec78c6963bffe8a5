"""The deployments of infra/prefect.yaml, on a real server with real workers: a night's run, its shards, its alarm.

Runs with `pytest -m slow`: server and workers take a while to start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from servers import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
TINY = [
    "pool.train_tasks=4",
    "pool.held_out_tasks=4",
    "pool.max_horizon=3",
    "iterations=1",
    "curriculum.tasks_per_iteration=2",
    "curriculum.group_size=2",
    "engine.deployment=rollouts/gpu",
    "engine.shards=2",
]


class Alarms(HTTPServer):
    """Where alarms are posted to; `heard` holds each one's JSON."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Listener)
        self.heard: list[dict] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alarm"


class _Listener(BaseHTTPRequestHandler):
    server: Alarms

    def do_POST(self) -> None:
        self.server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def running(log: Path, *words: str | Path, env: dict[str, str]) -> Iterator[None]:
    """A process for the length of a block, ended with its children."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            words, cwd=ROOT, env=env, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until(what, seconds: float):
    """The first true answer of `what`; the last one when the time is over."""
    deadline = time.monotonic() + seconds
    while not (answer := what()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return answer


class Server:
    """A Prefect server with everything deployed, asked over its API."""

    def __init__(self, url: str, env: dict[str, str], alarms: Alarms) -> None:
        self.env, self.alarms = env, alarms
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def healthy(self) -> bool:
        try:
            return self._http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> dict:
        return self._http.get(path).raise_for_status().json()

    def post(self, path: str, **body: object) -> dict | list[dict]:
        return self._http.post(path, json=body).raise_for_status().json()

    def finished(self, flow_run_id: str) -> dict | None:
        run = self.get(f"/flow_runs/{flow_run_id}")
        return run if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("deployed")
    alarms, port = Alarms(), free_port()
    threading.Thread(target=alarms.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{port}/api"
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "LONGBREATH_"))},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PREFECT_HOME": str(place / "prefect"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "LONGBREATH_HOME": str(place / "home"),
        "LONGBREATH_CHECKOUT": str(ROOT),
        "LONGBREATH_ALARM_URL": alarms.url,
    }
    serve = (BIN / "prefect", "server", "start", "--port", str(port))
    with ExitStack() as stack:
        stack.callback(alarms.shutdown)
        stack.enter_context(running(place / "server.log", *serve, env=env))
        deployed = Server(url, env, alarms)
        assert wait_until(deployed.healthy, 400), (place / "server.log").read_text()
        for _ in range(2):  # a second time changes nothing
            done = subprocess.run([ROOT / "infra/deploy.sh"], env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        for pool in ("longbreath-cpu", "longbreath-gpu"):
            worker = (BIN / "prefect", "worker", "start", "--pool", pool, "--type", "process")
            stack.enter_context(running(place / f"{pool}.log", *worker, env=env))
        yield deployed


def test_the_deployments_have_their_pools_schedules_and_limits(server):
    found = {d["name"]: d for d in server.post("/deployments/filter")}
    assert {name: d["work_pool_name"] for name, d in found.items()} == {
        "nightly": "longbreath-cpu",
        "by-hand": "longbreath-cpu",
        "gpu": "longbreath-gpu",
        "weekly": "longbreath-cpu",
    }
    crons = {name: [s["schedule"]["cron"] for s in d["schedules"] if s["active"]] for name, d in found.items()}
    assert crons == {"nightly": ["30 1 * * *"], "by-hand": [], "gpu": [], "weekly": ["0 4 * * 0"]}
    assert found["nightly"]["global_concurrency_limit"]["limit"] == 1
    assert found["nightly"]["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert found["gpu"]["concurrency_options"]["collision_strategy"] == "ENQUEUE"


def test_the_alarms_are_there_once_each(server):
    assert sorted(a["name"] for a in server.post("/automations/filter")) == [
        "longbreath: a candidate was refused",
        "longbreath: a run failed, crashed or is late",
        "longbreath: a silent run is crashed",
        "longbreath: three iterations within a day taught little",
    ]


def test_a_night_is_carried_out_by_the_workers_in_shards_and_its_refusal_rings(server):
    found = {d["name"]: d["id"] for d in server.post("/deployments/filter")}
    asked = server.post(
        f"/deployments/{found['nightly']}/create_flow_run",
        parameters={"settings": TINY, "at": "2026-01-31T01:30:00Z"},
    )
    run = wait_until(lambda: server.finished(asked["id"]), 600)
    logs = server.post("/logs/filter", logs={"flow_run_id": {"any_": [asked["id"]]}}, limit=200)
    assert run is not None
    assert run["state_type"] == "COMPLETED", "\n".join(line["message"] for line in logs)
    folder = next((Path(server.env["LONGBREATH_HOME"]) / "runs").glob("nightly-*"))
    result = json.loads((folder / "result.json").read_text())
    assert json.loads((folder / "config.json").read_text())["data"]["seed"] == 20260131
    assert result["rollouts"]["training"] + result["rollouts"]["probes"] == 4
    shards = [r for r in server.post("/flow_runs/filter") if r["deployment_id"] == found["gpu"]]
    assert [r["state_type"] for r in shards] == ["COMPLETED", "COMPLETED"]

    assert not result["promoted"]
    heard = wait_until(lambda: [a for a in server.alarms.heard if a["event"] == "longbreath.refused"], 60)
    assert [a["run"] for a in heard] == [result["run_id"]]
    assert heard[0]["details"]["reasons"] == result["verdict"]


def test_a_run_that_fails_rings(server):
    by_hand = next(d for d in server.post("/deployments/filter") if d["name"] == "by-hand")
    asked = server.post(f"/deployments/{by_hand['id']}/create_flow_run", parameters={"config": "{}"})
    run = wait_until(lambda: server.finished(asked["id"]), 180)
    assert run["state_type"] == "FAILED"
    heard = wait_until(lambda: [a for a in server.alarms.heard if a["event"] == "prefect.flow-run.Failed"], 60)
    assert [a["run"] for a in heard] == [run["name"]]
