"""Boxes whose owner died: process 1 follows its host by itself, so what is found here was stuck."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from environments.sandboxes.control_groups import is_orphan
from environments.sandboxes.launch import BOOT


def kill_orphans() -> set[str]:
    """Kill every bwrap and process 1 of a box whose owner is dead; the boxes' names."""
    names = set()
    for folder in Path("/proc").iterdir():
        name = _box_name(folder / "cmdline") if folder.name.isdigit() else None
        if name and is_orphan(name):
            names.add(name)
            try:
                os.kill(int(folder.name), signal.SIGKILL)
            except ProcessLookupError:
                continue
    return names


def _box_name(cmdline: Path) -> str | None:
    """The name in the command line of a box's bwrap or process 1, None for any other process."""
    try:
        words = cmdline.read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    at = words.index(BOOT.encode()) + 3 if BOOT.encode() in words else len(words)
    return words[at].decode("utf-8", "replace") if at < len(words) else None
