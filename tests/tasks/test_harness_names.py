"""Every shipped harness can be named by a run, and one that is not installed says how to mend that."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.gates.judge import GateConfig
from environments.harnesses.inside import HarnessNotReady
from environments.harnesses.specs import SPECS
from tasks.rollouts import HARNESSES, RolloutConfig


@pytest.mark.parametrize("name", ["claude_code", "codex", "opencode", "qwen_code"])
def test_a_harness_that_is_not_installed_says_where_it_looked_and_how_to_mend_it(tmp_path: Path, name: str) -> None:
    config = RolloutConfig(harness=name, harness_folder=str(tmp_path))
    with pytest.raises(HarnessNotReady) as error:
        HARNESSES[name](config, GateConfig())
    assert str(tmp_path / name) in str(error.value)
    assert "run infra/harnesses/install.sh" in str(error.value)


def test_an_installed_harness_is_made_by_its_name_alone(tmp_path: Path) -> None:
    spec = SPECS["codex"]
    package = tmp_path / "codex" / "node_modules" / spec.package
    package.mkdir(parents=True)
    (package / "package.json").write_text(f'{{"version": "{spec.versions[0]}"}}')
    made = HARNESSES["codex"](RolloutConfig(harness="codex", harness_folder=str(tmp_path)), GateConfig())
    assert made.name == "codex"
