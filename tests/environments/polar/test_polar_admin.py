"""The operator swaps weights while the proxy serves; nobody else does, and nothing else is put in their place."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

import httpx
import pytest
from fakes import make_tiny_folder
from polar_fakes import PLENTY, STOP, ScriptedEngine, recorder_for

from environments.polar.admin import WEIGHTS
from environments.polar.server import serving
from infra.engines.base import EngineError, Sampling


class Growing(ScriptedEngine):
    """Refuses versions that do not grow, as every engine does, and weights that it cannot read."""

    async def load_weights(self, folder, version):
        if version <= self.policy_version:
            raise ValueError(f"weights version {version} is not above the present one, {self.policy_version}")
        if (folder / "torn").exists():
            raise EngineError("the weights are torn")
        if (folder / "odd").exists():
            raise ZeroDivisionError("a bug in the engine")
        await super().load_weights(folder, version)


@contextlib.asynccontextmanager
async def operated(tmp_path, tiny_folder, rendering):
    """A served recorder: (recorder, engine, a harness's client, an operator's)."""
    engine = Growing(tiny_folder, lambda r: "ok" + STOP)
    async with (
        recorder_for(engine, tmp_path / "log", rendering) as recorder,
        serving(recorder, admin_key="operator") as url,
    ):
        endpoint = recorder.open("r1", sampling=Sampling(max_tokens=20), budget=PLENTY)
        keys = {"authorization": f"Bearer {endpoint.api_key}"}, {"authorization": "Bearer operator"}
        async with (
            httpx.AsyncClient(base_url=endpoint.base_url, headers=keys[0], timeout=30) as harness,
            httpx.AsyncClient(base_url=url, headers=keys[1], timeout=30) as operator,
        ):
            yield recorder, engine, harness, operator


def body(text):
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_calls_that_run_keep_their_weights_and_those_that_wait_get_the_new(tmp_path, tiny_folder, rendering):
    async with operated(tmp_path, tiny_folder, rendering) as (recorder, engine, harness, operator):
        engine.may_speak.clear()
        before = asyncio.create_task(harness.post("/v1/chat/completions", json=body("a")))
        await until(lambda: engine.speaking)
        swap = asyncio.create_task(operator.post(WEIGHTS, json={"folder": str(tiny_folder)}))
        await until(lambda: recorder.gate._closed)
        after = asyncio.create_task(harness.post("/v1/chat/completions", json=body("b")))
        await until(lambda: recorder.gate.waiting)
        assert not swap.done()
        engine.may_speak.set()
        answer = await swap
        assert (answer.status_code, answer.json()) == (200, {"version": 1})
        assert [(await call).status_code for call in (before, after)] == [200, 200]
        named = await operator.post(WEIGHTS, json={"folder": str(tiny_folder), "version": 7})
        assert named.json() == {"version": 7}
        await harness.post("/v1/chat/completions", json=body("c"))
        recording = await recorder.close("r1")
    assert engine.swapped_while_speaking == [0, 0]
    assert [c.policy_version for c in recording.calls] == [0, 1, 7]
    assert recording.broken == ()


async def test_swaps_at_the_same_time_get_versions_of_their_own(tmp_path, tiny_folder, rendering):
    async with operated(tmp_path, tiny_folder, rendering) as (_, _, _, operator):
        asked = {"folder": str(tiny_folder)}
        answers = await asyncio.gather(*(operator.post(WEIGHTS, json=asked) for _ in range(3)))
    assert sorted(answer.json()["version"] for answer in answers) == [1, 2, 3]


async def test_only_the_operators_key_swaps(tmp_path, tiny_folder, rendering):
    async with operated(tmp_path, tiny_folder, rendering) as (recorder, engine, harness, operator):
        url, asked = f"{operator.base_url}{WEIGHTS}", {"folder": str(tiny_folder)}
        for key in (harness.headers["authorization"], "Bearer x", "Bearer opérateur".encode()):
            refused = await operator.post(url, json=asked, headers={"authorization": key})
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await operator.get(WEIGHTS)).status_code == 404
        async with serving(recorder) as plain:
            assert (await operator.post(f"{plain}{WEIGHTS}", json=asked)).status_code == 404
    assert engine.policy_version == 0


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("other") / "model", vocab=300, layers=1, hidden=32)


async def test_what_cannot_take_the_place_is_refused_with_the_mend_and_the_old_weights_serve_on(
    tmp_path, tiny_folder, rendering, other_tokenizer
):
    torn, odd = (shutil.copytree(tiny_folder, tmp_path / name) for name in ("torn", "odd"))
    (torn / "torn").touch()
    (odd / "odd").touch()
    cut = shutil.copytree(tiny_folder, tmp_path / "cut")
    (cut / "tokenizer.json").write_text("{")
    (tmp_path / "empty").mkdir()
    cases = [
        ({"folder": str(tmp_path / "empty")}, 400, "want the absolute path of a model folder"),
        ({"folder": "model"}, 400, "want the absolute path of a model folder"),
        ({"folder": 3}, 400, "folder is a number"),
        ({"folder": str(other_tokenizer)}, 400, "serve it by a proxy of its own"),
        ({"folder": str(tiny_folder), "version": "two"}, 400, "want a positive integer"),
        ({"folder": str(cut)}, 400, "does not load"),
        ({"folder": str(torn)}, 503, "the weights are torn"),
        ({"folder": str(odd)}, 500, "a bug in the engine"),
    ]
    async with operated(tmp_path, tiny_folder, rendering) as (recorder, _, harness, operator):
        for asked, status, words in cases:
            answer = await operator.post(WEIGHTS, json=asked)
            assert (answer.status_code, words in answer.text) == (status, True), answer.text
        assert (await operator.post(WEIGHTS, json={"folder": str(tiny_folder), "version": 2})).status_code == 200
        stale = await operator.post(WEIGHTS, json={"folder": str(tiny_folder), "version": 2})
        assert (stale.status_code, "not above the present one" in stale.text) == (400, True)
        assert (await harness.post("/v1/chat/completions", json=body("x"))).status_code == 200
        recording = await recorder.close("r1")
    assert [c.policy_version for c in recording.calls] == [2]
