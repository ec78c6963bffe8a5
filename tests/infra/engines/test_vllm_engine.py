"""The vLLM client: the contract against a real server (marker `vllm`, `make test-vllm`), and its failures without."""

from __future__ import annotations

from pathlib import Path

import pytest
from contract import EngineContract, SamplingContract, collect, random_ids
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from vllm_server import untied, vllm_serving
from vllm_wire import served, wire_app

from infra.engines.base import EngineError
from infra.engines.vllm import VllmEngine

make_request = EngineContract().request


@pytest.mark.vllm
class TestVllmEngine(SamplingContract):
    logprob_tolerance = 1e-3  # another kernel, another order of sums

    @pytest.fixture(scope="class")
    def served_folder(self, tiny_folder, tmp_path_factory):
        return untied(tiny_folder, tmp_path_factory.mktemp("untied") / "tiny")

    @pytest.fixture(scope="class")
    def other_folder(self, other_folder, tmp_path_factory):
        return untied(other_folder, tmp_path_factory.mktemp("untied") / "other")

    @pytest.fixture(scope="class")
    def url(self, served_folder, tmp_path_factory):
        with vllm_serving(served_folder, tmp_path_factory.mktemp("vllm") / "log.txt") as url:
            yield url

    @pytest.fixture
    async def engine(self, url, served_folder):
        engine = VllmEngine(url, served_folder)
        yield engine
        await engine.aclose()
        restored = VllmEngine(url, served_folder)
        await restored.load_weights(served_folder, 1)
        await restored.aclose()


class TestVllmWire(EngineContract):
    """The client's own work, against a local engine behind vLLM's interface."""

    test_stop_tokens = SamplingContract.test_a_stop_token_ends_a_completion_and_is_part_of_it
    test_seeds = SamplingContract.test_tokens_depend_on_seed_rollout_and_call_and_on_nothing_else

    @pytest.fixture
    async def engine(self, make_local, tiny_folder):
        with served(wire_app(make_local(tiny_folder))) as url:
            engine = VllmEngine(url, tiny_folder)
            yield engine
            await engine.aclose()


def answering(*lines: str) -> Starlette:
    """A server whose every completion is these lines."""

    async def completions(_):
        return StreamingResponse(iter([f"{line}\n\n" for line in lines]), media_type="text/event-stream")

    async def models(_):
        return JSONResponse({"data": [{"id": "tiny", "max_model_len": 512}]})

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])])


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('data: {"choices": [{"text": "hi", "finish_reason": "stop"}]}', "sent no token_ids; want a version"),
        ('data: {"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1.0]}}]}', "2 ids with 1 logprobs"),
        ('data: {"error": {"message": "out of memory"}}', "failed in mid-answer: .*out of memory"),
        ("data: [DONE]", "without a finish reason"),
    ],
)
async def test_an_answer_that_cannot_train_is_our_fault(line, complaint, tmp_path):
    with served(answering(line)) as url:
        engine = VllmEngine(url, tmp_path)
        with pytest.raises(EngineError, match=complaint):
            await collect(engine.stream(make_request("r", random_ids(1, 5))))
        await engine.aclose()


async def test_a_server_without_control_endpoints_says_how_to_start_it(tmp_path):
    with served(answering()) as url:
        engine = VllmEngine(url, tmp_path)
        with pytest.raises(EngineError, match=r"has no /pause.*VLLM_SERVER_DEV_MODE=1"):
            await engine.load_weights(tmp_path, 1)
        assert engine.policy_version == 0
        await engine.aclose()


def test_a_server_that_is_not_there_is_our_fault_and_named():
    with pytest.raises(EngineError, match=r"vLLM at http://127\.0\.0\.1:9/v1/models did not answer.*is it running"):
        VllmEngine("http://127.0.0.1:9", Path("folder"))
