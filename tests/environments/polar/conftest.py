"""The tiny folder and its rendering, made once for this room."""

from __future__ import annotations

import pytest
from fakes import make_tiny_folder

from environments.polar.rendering import load_rendering


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("polar") / "model", vocab=512, layers=1, hidden=32)


@pytest.fixture(scope="session")
def rendering(tiny_folder):
    return load_rendering(tiny_folder)


@pytest.fixture(scope="session")
def plain(tiny_folder):
    """The tokenizer as the library loads it."""
    from renderers.base import load_tokenizer

    return load_tokenizer(str(tiny_folder))
