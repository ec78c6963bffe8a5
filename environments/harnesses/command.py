"""Any command-line agent as a harness, by a spec: how it is started, pointed at the model, and read.

The agent runs inside the box: its npm folder and Node are mounted read-only, its home is the box's own and goes with
it, and the box's one exposed port is its only network. Turns are rebuilt from the wire by the recorder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from environments.harnesses.base import Endpoint, HarnessOutcome
from environments.harnesses.equipment import HOME, ROOT, Equipment, url_in_box
from environments.harnesses.inside import (
    Ended,
    HarnessNotReady,
    Invocation,
    StartProof,
    given_up,
    outcome,
    run_inside,
)
from environments.sandboxes.base import ReadonlyMount, Sandbox
from environments.suites.base import Suite
from environments.types import TaskSpec

INSTALL = "run infra/harnesses/install.sh"
NODE_FOLDER = f"{ROOT}/node"
HAND_IN = 'When done, reply {"answer": "done"} and nothing else.'


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a spec is told of one rollout. `url` has no /v1 and is the rollout's own, as the box reaches it."""

    prompt: str
    url: str
    api_key: str
    model: str
    max_turns: int
    command_timeout_s: float
    home: str = HOME


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The last thing an agent said: its answer where it ended well, else why it did not."""

    ended_well: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """One command-line agent.

    `program` is below the install folder; `needs_node` says that Node must run it. `versions` are those that were
    tried. `shell_call` gives name and arguments of the tool call that runs a command: what a scripted policy says.
    `side_calls` says in words which requests are beside the work; the recorder classes them by their shape.
    """

    name: str
    package: str
    versions: tuple[str, ...]
    program: str
    needs_node: bool
    invoke: Callable[[Errand, tuple[str, ...]], Invocation]
    read: Callable[[Ended], Word]
    shell_call: Callable[[str], tuple[str, Mapping[str, Any]]]
    side_calls: tuple[str, ...]
    memory_mb: int = 2048

    def installed_version(self, folder: Path) -> str:
        """The version in an install folder. Raises HarnessNotReady when there is none or it was never tried."""
        path = folder / "node_modules" / self.package / "package.json"
        try:
            version = str(json.loads(path.read_text())["version"])
        except (OSError, ValueError, KeyError) as error:
            raise HarnessNotReady(f"no {self.package} below {folder}: {error}; {INSTALL}") from error
        if version not in self.versions:
            raise HarnessNotReady(
                f"{folder} has {self.package} {version}; want one that was tried: {', '.join(self.versions)}; {INSTALL}"
            )
        return version


@dataclass(frozen=True, slots=True)
class Node:
    """The Node that boxes use: its path there, and the host folder to mount where /usr does not hold it."""

    program: str
    mounts: tuple[ReadonlyMount, ...]

    @staticmethod
    def find() -> Node:
        """The host's. Raises HarnessNotReady when there is none."""
        found = shutil.which("node")
        if found is None:
            raise HarnessNotReady("node is not on PATH; install Node 20 or 22 (https://nodejs.org)")
        real = Path(found).resolve()
        if real.is_relative_to("/usr") and not real.is_relative_to("/usr/local"):  # boxes see /usr, not /usr/local
            return Node(str(real), ())
        mount = ReadonlyMount(host=real.parent.parent, box=NODE_FOLDER)
        return Node(f"{NODE_FOLDER}/bin/node", (mount,))


class CommandHarness:
    """Drives one rollout by the command of `spec`, installed in `folder` (see infra/harnesses/install.sh)."""

    def __init__(self, spec: CommandSpec, folder: Path, *, command_timeout_s: float = 20.0) -> None:
        """Raises HarnessNotReady when it, or a Node that it needs, is not installed in a version that was tried."""
        self.name = spec.name
        self._spec = spec
        self._folder = folder.resolve()
        self._command_timeout_s = command_timeout_s
        version = spec.installed_version(self._folder)
        self._proof = StartProof((*self._program, "--version"), {"HOME": HOME}, version)

    @cached_property
    def _node(self) -> Node | None:
        return Node.find() if self._spec.needs_node else None

    @cached_property
    def _program(self) -> tuple[str, ...]:
        program = f"{ROOT}/{self._spec.name}/{self._spec.program}"
        return (program,) if self._node is None else (self._node.program, program)

    @property
    def equipment(self) -> Equipment:
        """What its boxes must hold beside what the suite asks for."""
        folder = ReadonlyMount(host=self._folder, box=f"{ROOT}/{self._spec.name}")
        return Equipment(
            mounts=(folder, *(self._node.mounts if self._node is not None else ())),
            memory_mb=self._spec.memory_mb,
            processes=128,
            disk_mb=256,
            cpu_s=600.0,
        )

    async def run(self, task: TaskSpec, *, suite: Suite, sandbox: Sandbox, endpoint: Endpoint) -> HarnessOutcome:
        """See `Harness.run`. The box must come from `boxes_for`; SandboxError when it does not."""
        await self._proof.show(sandbox)
        errand = Errand(
            prompt=f"{task.instruction}\n{HAND_IN}",
            url=url_in_box(endpoint),
            api_key=endpoint.api_key,
            model=endpoint.model,
            max_turns=task.limits.max_turns,
            command_timeout_s=self._command_timeout_s,
        )
        ended = await run_inside(sandbox, self._spec.invoke(errand, self._program), task)
        if isinstance(ended, HarnessOutcome):
            return ended
        word = self._spec.read(ended)
        if word.ended_well:
            return outcome("completed", payload=word.text)
        return given_up(self.name, f"{word.text} {ended.last_words}", task)
