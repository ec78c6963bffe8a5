"""Engines over one tiny folder, and the plain transformers model they are measured against."""

from __future__ import annotations

import asyncio

import pytest
import torch
from fakes import make_tiny_folder
from transformers import AutoModelForCausalLM

from infra.engines.local import LocalEngine, LocalSettings

pytest.register_assert_rewrite("contract")


SHAPE = {"max_positions": 512, "hidden": 128}  # heads of 32 numbers: vLLM's CPU attention has no smaller ones


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("engines") / "tiny", **SHAPE)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory):
    """Other weights of the same shapes."""
    return make_tiny_folder(tmp_path_factory.mktemp("engines") / "other", seed=1, **SHAPE)


@pytest.fixture(scope="session")
def reference(tiny_folder):
    """The folder as transformers runs it, one sequence at a time, without any cache."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    return model.requires_grad_(False)


@pytest.fixture
def make_local():
    """Starts local engines and closes them at the end of the test."""
    engines = []

    def start(folder, **kwargs):
        settings = LocalSettings(**{"num_slots": 32, "chunk_tokens": 64, **kwargs.pop("settings", {})})
        engines.append(LocalEngine(folder, settings=settings, **kwargs))
        return engines[-1]

    yield start
    for engine in engines:
        asyncio.run(engine.aclose())
