"""`rollouts record`, `proxy serve`, `swap` and `replay`, with a random tiny policy and a client that any box has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from fakes import make_tiny_folder

from environments.polar.replay import replay
from flows.cli import proxy, rollouts

CLIENT = """
import json, os, urllib.request
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "Go."}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
    assert json.load(answer)["choices"]
"""
SERVE = "import sys; from flows.cli import proxy; sys.exit(proxy.app(sys.argv[1:], result_action='return_value'))"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("policy") / "model", layers=1, hidden=32)


def call(app, *words: str) -> int:
    return app(list(words), result_action="return_value")


def last_object(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


def test_a_command_is_recorded_and_its_log_replays_to_the_same_numbers(policy, tmp_path, capfd):
    words = ("--home", str(tmp_path), "--json", "--policy", str(policy), "--max-tokens", "8")
    assert call(rollouts.app, "record", *words, "--", sys.executable, "-c", CLIENT) == 0
    recorded = last_object(capfd.readouterr().out)
    assert (recorded["calls"], recorded["chains"], recorded["broken"]) == (1, 1, 0)
    assert 1 <= recorded["sampled"] <= 8
    assert recorded["sampled"] == recorded["delivered"] == recorded["trainable"]
    assert call(proxy.app, "replay", "recorded", "--home", str(tmp_path), "--json") == 0
    assert last_object(capfd.readouterr().out) == recorded
    assert call(proxy.app, "replay", "--home", str(tmp_path), "--json", "--parquet", str(tmp_path / "p")) == 0
    assert last_object(capfd.readouterr().out)["rollouts"] == ["recorded"]
    assert sorted(p.name for p in (tmp_path / "p").iterdir()) == ["calls.parquet", "chains.parquet"]


def test_a_command_that_is_not_there_is_named_before_anything_is_loaded(policy, tmp_path, capfd):
    words = ("record", "--home", str(tmp_path), "--policy", str(policy))
    assert call(rollouts.app, *words, "--", "nosuchcommand") == 2
    assert "no program 'nosuchcommand' is found on PATH" in capfd.readouterr().err


REFUSED = f"""
import urllib.error
def ask():
    exec({CLIENT!r})
try:
    ask()
    ask()
except urllib.error.HTTPError as error:
    assert error.code == 403 and b"budget_exhausted" in error.read()
else:
    raise SystemExit("both were answered")
"""


@pytest.mark.parametrize("bound", [("--max-calls", "1"), ("--max-total-tokens", "1"), ("--wall-time-s", "0.000001")])
def test_the_bounds_of_a_rollout_are_set_by_flags(policy, tmp_path, bound):
    words = ("record", "--home", str(tmp_path), "--policy", str(policy), *bound)
    assert call(rollouts.app, *words, "--", sys.executable, "-c", REFUSED) == 0


def test_a_command_that_fails_fails_the_recording(policy, tmp_path, capfd):
    words = ("record", "--home", str(tmp_path), "--policy", str(policy))
    assert call(rollouts.app, *words, "--", sys.executable, "-c", "raise SystemExit(3)") == 1
    assert "the command ended with exit code 3" in capfd.readouterr().err


def test_bad_input_is_said_with_the_mend(tmp_path, capfd):
    assert call(rollouts.app, "record", "--home", str(tmp_path)) == 2
    assert call(proxy.app, "serve", "--home", str(tmp_path), "--policy", str(tmp_path / "none")) == 2
    assert call(proxy.app, "replay", "--home", str(tmp_path)) == 2
    said = capfd.readouterr().err
    assert "want `longbreath rollouts record -- COMMAND ...`" in said
    assert "give --policy a Hugging Face folder" in said
    assert "give the folder that the recorder wrote to" in said


@contextmanager
def serving(*words: str):
    """`proxy serve` as a process, and what it tells a harness."""
    with subprocess.Popen([sys.executable, "-c", SERVE, "serve", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline() for _ in range(6)]
            yield process, dict(line.strip().removeprefix("export ").split("=", 1) for line in lines)
        finally:
            process.kill()


def ask(variables) -> None:
    subprocess.run([sys.executable, "-c", CLIENT], env={**os.environ, **variables}, check=True, timeout=200)


def test_serving_ends_with_a_report_when_it_is_interrupted(policy, tmp_path):
    words = ("--home", str(tmp_path), "--json", "--policy", str(policy), "--max-tokens", "4")
    with serving(*words) as (process, variables):
        ask(variables)
        with urllib.request.urlopen(variables["ANTHROPIC_BASE_URL"]) as alive:
            assert alive.status == 200
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert last_object(rest)["calls"] == 1


def test_a_proxy_that_serves_gets_other_weights_by_a_command(policy, tmp_path, capfd):
    home = ("--home", str(tmp_path))
    trained = make_tiny_folder(tmp_path / "trained", layers=1, hidden=32, seed=1)
    assert call(proxy.app, "swap", str(trained), *home) == 2
    assert "no proxy serves" in capfd.readouterr().err
    with serving(*home, "--policy", str(policy), "--max-tokens", "4") as (process, variables):
        told = tmp_path / "proxy" / "operator.json"
        assert told.stat().st_mode & 0o077 == 0
        ask(variables)
        assert call(proxy.app, "swap", str(trained), *home, "--json") == 0
        assert last_object(capfd.readouterr().out) == {"version": 1}
        ask(variables)
        assert call(proxy.app, "swap", str(trained), "--version", "1", *home) == 2
        assert call(proxy.app, "swap", str(tmp_path), *home) == 2
        said = capfd.readouterr().err
        assert "not above the present one" in said
        assert "want the absolute path of a model folder" in said
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=200)
    assert process.returncode == 0
    assert not told.exists()
    recording = replay(tmp_path / "proxy" / "calls", "proxy")
    assert [c.policy_version for c in recording.calls] == [0, 1]
    told.write_text('{"url": "http://127.0.0.1:9", "key": "x"}')
    assert call(proxy.app, "swap", str(trained), *home) == 1
    assert "is it still running?" in capfd.readouterr().err
