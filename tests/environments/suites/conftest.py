"""Boxes for the tests of the suites."""

from __future__ import annotations

import pytest

from environments.sandboxes.bubblewrap import BubblewrapProvider


@pytest.fixture(scope="session")
def boxes() -> BubblewrapProvider:
    """Makes real boxes."""
    return BubblewrapProvider()
