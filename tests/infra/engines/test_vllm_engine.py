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
from contract import EngineContract, SamplingContract

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


def test_a_server_that_is_not_there_is_our_fault_and_named():
    with pytest.raises(EngineError, match=r"vLLM at http://127\.0\.0\.1:9/v1/models did not answer.*is it running"):
        VllmEngine("http://127.0.0.1:9", Path("folder"))
