"""The kept shell of a box: what lasts, what ends it, what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from environments.sandboxes.base import Sandbox, SandboxSpec
from environments.sandboxes.bubblewrap import BubblewrapProvider


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    box = await BubblewrapProvider().start(SandboxSpec(label="shell"))
    yield box
    await box.stop()


async def test_folder_variables_functions_aliases_and_status_last_between_commands(box: Sandbox) -> None:
    await box.run("mkdir d; cd d; x=5; export Y=6; f() { echo f$x; }; alias g='echo g'; false")
    result = await box.run("echo $?; pwd; f; g; python3 -c 'import os; print(os.environ[\"Y\"])'")
    assert result.output.splitlines() == ["1", "/srv/d", "f5", "g", "6"]
    assert result.exit_code == 0
