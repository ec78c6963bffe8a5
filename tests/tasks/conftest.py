"""The recorder's fakes, for the stages that use one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "environments" / "polar")]
