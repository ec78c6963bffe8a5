"""What it takes to start a real server for a test: a port, and a place for what it prints."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    """A port of loopback that nobody holds at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def logged(command: Sequence[str], log: Path) -> list[str]:
    """The command with all that it prints in `log`: a pipe that nobody reads would fill up and stop it."""
    return ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(log), *command]
