"""Where runs are kept, known without importing anything heavy."""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """LONGBREATH_HOME, or `.longbreath` below the present folder."""
    return Path(os.environ.get("LONGBREATH_HOME", ".longbreath")).resolve()
