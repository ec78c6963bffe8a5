"""A run's own notes: what it has made, in order, and how long each stage took."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from infra import records
from infra.manifest import Manifest
from tasks.stage import Runner, Work

STAGES, EXPIRED = "stages.jsonl", "expired.jsonl"
"""A run's manifests in order; and how that file is called once `flows.maintenance` has dropped the artifacts."""


@dataclass
class Noted:
    """A runner that writes down, in order, what a run has made, and how long each stage took."""

    inner: Runner
    path: Path
    wall_s: dict[str, float] = field(default_factory=dict)

    def __call__(self, work: Work) -> Manifest:
        """See `tasks.stage.Runner`."""
        started = time.monotonic()
        manifest = self.inner(work)
        self.wall_s[work.stage.name] = self.wall_s.get(work.stage.name, 0.0) + time.monotonic() - started
        with self.path.open("ab") as stream:
            stream.write(records.to_json(manifest) + b"\n")
        return manifest
