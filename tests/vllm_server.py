"""A real vLLM server for the tests marked `vllm`, started on a folder and ended with all its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from servers import free_port, logged
from transformers import AutoModelForCausalLM, AutoTokenizer

from infra.processes import child_group

START_S = 280.0
FLAGS = (
    *("--dtype", "float32"),
    *("--generation-config", "vllm"),
    *("--logprobs-mode", "processed_logprobs"),
    "--enforce-eager",  # nothing to compile: up in half the time
    "--no-enable-chunked-prefill",  # vLLM 0.32 rewinds a seeded draw after half a prompt, which no CPU generator can
)
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that swap weights
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "OMP_NUM_THREADS": "1",
}


def vllm_python() -> str:
    """The interpreter that has vLLM. Skips the test where none is named."""
    python = os.environ.get("LONGBREATH_VLLM_PYTHON", "")
    if not python:
        pytest.skip("LONGBREATH_VLLM_PYTHON names no Python with vLLM; `make test-vllm` installs one and runs this")
    return python


@contextmanager
def vllm_serving(folder: Path, log: Path) -> Iterator[str]:
    """The URL of a server on the weights of `folder`; what it prints goes to `log`."""
    port = free_port()
    command = [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += [*FLAGS, "--port", str(port)]
    without_ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with child_group(logged(command, log), cwd=log.parent, env=without_ours | ENVIRONMENT) as server:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _answers(url):
            if server.popen.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM did not start; the end of {log}:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models").status_code == 200
    except httpx.HTTPError:
        return False


def untied(folder: Path, target: Path) -> Path:
    """A copy of a policy whose head has weights of its own, equal to the embedding's.

    vLLM 0.32 on a CPU packs the head once: a tied one stays the old one when weights are swapped.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)
    return target
