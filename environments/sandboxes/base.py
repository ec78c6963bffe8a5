"""The sandbox protocol: one box a rollout, one shell kept in it, a real world inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

BoxFault = Literal["out_of_memory", "shell_killed", "disk_full", "process_limit", "output_limit"]


class SandboxError(RuntimeError):
    """The host could not do its part (no bwrap, no memory on the host, daemon gone). Ours, never the agent's.

    Nothing an agent does inside its box may raise this: what it does to itself is a `CommandResult.fault`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadonlyMount:
    """A host folder (a harness, a toolchain) seen read-only in the box."""

    host: Path
    box: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedSocket:
    """A host unix socket that the box reaches as 127.0.0.1:`port`: its only way out."""

    host_socket: Path
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxLimits:
    """Hard limits. `output_bytes` caps what one command may print back; the rest is cut and said."""

    memory_mb: int = 512
    processes: int = 64
    disk_mb: int = 64
    output_bytes: int = 16_384
    cpu_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """How to make a box. `workdir` is where the agent starts and what `export_state` saves."""

    label: str
    workdir: str = "/srv"
    env: tuple[tuple[str, str], ...] = ()
    limits: BoxLimits = field(default_factory=BoxLimits)
    mounts: tuple[ReadonlyMount, ...] = ()
    exposed: tuple[ExposedSocket, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command did. `output` is stdout and stderr as a terminal would show them, cut at `output_bytes`.

    `exit_code` is None when the command was killed at its timeout. `fault` names what the agent did to its box
    (a dead shell is started anew for the next command, which says so in its output).
    """

    exit_code: int | None
    output: str
    timed_out: bool
    truncated: bool
    duration_s: float
    fault: BoxFault | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One path below workdir that differs from another state."""

    path: str
    kind: Literal["added", "removed", "changed"]


class Sandbox(Protocol):
    """A running box. All methods raise SandboxError when the host fails, and only then."""

    async def run(self, command: str, *, timeout_s: float = 30.0) -> CommandResult:
        """Run a command in the kept shell: working directory, variables and functions last between calls."""
        ...

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file (parents made), owned by the box's user."""
        ...

    async def get(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError when there is none."""
        ...

    async def export_state(self) -> bytes:
        """The tree below workdir as an uncompressed tar: modes and links kept, owners and times dropped."""
        ...

    async def import_state(self, state: bytes) -> None:
        """Lay a tree from `export_state` (or `infra`-made tar) below workdir."""
        ...

    async def diff(self, state: bytes) -> tuple[StateChange, ...]:
        """What has changed below workdir since `state`, sorted by path."""
        ...

    async def stop(self) -> None:
        """End the whole process tree and free all it held. Idempotent."""
        ...


class SandboxProvider(Protocol):
    """Makes boxes. `not_covered` says in words what this kind of box does not hold back."""

    name: str
    not_covered: tuple[str, ...]

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A fresh box. Raises SandboxError with the mend (what to install) when it cannot be made."""
        ...

    async def sweep(self) -> int:
        """Remove what dead runs left behind; the number of boxes removed."""
        ...
