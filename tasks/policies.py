"""Policies as artifacts: given folders, and the ones that training steps made."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.manifest import Manifest
from tasks.stage import Desk, Stage, Work
from training.policy import POLICY, check_policy

ADOPT = Stage(name="adopt_policy", version=1, kind="policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Weights and their version. Engine and trainer both read them from `folder`."""

    manifest: Manifest
    version: int

    def folder(self, desk: Desk) -> Path:
        """The HF folder: the artifact itself, or the part of a training step that is one."""
        path = desk.store.path(self.manifest)
        return path / POLICY if (path / POLICY).is_dir() else path


def adopt(folder: Path, *, digest: str | None) -> Work:
    """Policy 0: a model folder copied into the store. Raises PolicyError when it is broken or not the pinned one."""
    found = check_policy(folder, digest=digest)

    def make(out: Path, scratch: Path) -> int:
        shutil.copytree(folder, out)
        return 0

    return Work(stage=ADOPT, parents=(), section=found, make=make)
