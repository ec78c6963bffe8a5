"""What rollouts under external harnesses share: a policy that says what it is told to, and a real box."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "polar")]

from fakes import make_tiny_folder


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory):
    return make_tiny_folder(
        tmp_path_factory.mktemp("short") / "model", vocab=512, layers=1, hidden=32, max_positions=4096
    )


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory):
    """For the prompts of command-line agents, tens of thousands of tokens long."""
    return make_tiny_folder(
        tmp_path_factory.mktemp("long") / "model", vocab=2048, layers=1, hidden=32, max_positions=131_072
    )
