"""The vLLM client: the contract against a real server (marker `vllm`), and its failures without one.

Start a server on the folder that the tests use, then run them:

    cd tests && python -c "import fakes, pathlib; fakes.make_tiny_folder(pathlib.Path('/tmp/tiny'), max_positions=512)"
    VLLM_SERVER_DEV_MODE=1 vllm serve /tmp/tiny --dtype float32 --generation-config vllm \\
        --logprobs-mode processed_logprobs --port 8123
    LONGBREATH_VLLM_URL=http://127.0.0.1:8123 pytest -m vllm tests/infra/engines
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract import EngineContract, SamplingContract, collect, random_ids
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from vllm_wire import served, wire_app

from infra.engines.base import EngineError
from infra.engines.vllm import VllmEngine

make_request = EngineContract().request


@pytest.mark.vllm
class TestVllmEngine(SamplingContract):
    logprob_tolerance = 1e-3  # another kernel, another order of sums

    @pytest.fixture
    async def engine(self, tiny_folder):
        url = os.environ["LONGBREATH_VLLM_URL"]
        engine = VllmEngine(url, tiny_folder)
        yield engine
        await engine.aclose()
        restored = VllmEngine(url, tiny_folder)
        await restored.load_weights(tiny_folder, 1)
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
