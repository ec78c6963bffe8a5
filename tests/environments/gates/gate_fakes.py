"""A suite small enough to read, whose grade looks at the state it is given; and records to judge."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

from environments.sandboxes.base import CommandResult, SandboxError, SandboxProvider, SandboxSpec
from environments.suites.base import Grade, ReferenceStep
from environments.types import ErrorClass, Limits, Split, Status, TaskPool, TaskSpec, Trajectory, Turn, Usage

TASK = TaskSpec(
    task_id="t1",
    suite="port_file",
    instruction="Write 80 into the file port.",
    seed=1,
    horizon=3,
    limits=Limits(max_turns=8, max_tokens=400),
)


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar with these regular files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


@dataclass
class PortFileSuite:
    """Passes when `port` holds 80. `host_down` makes grading fail as a dead host would."""

    name: str = "port_file"
    version: int = 1
    host_down: bool = False
    graded: int = 0

    def pool(self, *, split: Split, size: int, seed: int, min_horizon: int, max_horizon: int) -> TaskPool:
        return TaskPool(name=self.name, version=1, split=split, tasks=(TASK,))

    def initial_state(self, task: TaskSpec) -> bytes:
        return tar_of({"port": b"8080"})

    def box(self, task: TaskSpec) -> SandboxSpec:
        return SandboxSpec(label="port_file")

    def reference(self, task: TaskSpec) -> tuple[ReferenceStep, ...]:
        return (ReferenceStep(thought="Write it.", command="echo 80 > port"),)

    def error_class(self, command: str, result: CommandResult) -> ErrorClass | None:
        return "exit_code" if result.exit_code else None

    async def grade(
        self, task: TaskSpec, *, final_state: bytes, final_payload: str | None, boxes: SandboxProvider
    ) -> Grade:
        self.graded += 1
        if self.host_down:
            raise SandboxError("no space left on the host")
        with tarfile.open(fileobj=io.BytesIO(final_state)) as tar:
            stream = tar.extractfile("port")
            right = stream is not None and stream.read().strip() == b"80"
        return Grade(passed=right, detail="port is 80" if right else "port is not 80", scores=(("port", 1.0),))

    def forbidden(self, task: TaskSpec) -> tuple[str, ...]:
        return ("check",)


class NoBoxes:
    """A provider that says it was asked: this suite grades without a box."""

    name = "none"
    not_covered: tuple[str, ...] = ()

    async def start(self, spec: SandboxSpec) -> object:
        raise SandboxError("this provider makes no boxes")

    async def sweep(self) -> int:
        return 0


def turn(
    index: int, action: str, *, thought: str = "", error: ErrorClass | None = None, source: str = "sandbox"
) -> Turn:
    """One turn."""
    return Turn(
        index=index,
        call_id=f"c{index}",
        tool_call_id=f"x{index}",
        agent_id="main",
        source="wire" if source == "wire" else "sandbox",
        thought=thought,
        action=action,
        observation="",
        exit_code=0,
        error_class=error,
        duration_s=0.0,
    )


def trajectory(
    *turns: Turn, payload: str | None = '{"answer": "done"}', status: Status = "completed", fault: str = ""
) -> Trajectory:
    """One rollout with these turns."""
    return Trajectory(
        rollout_id="r1",
        group_id="g1",
        index=0,
        attempt=0,
        task_id="t1",
        status=status,
        fault=fault,
        chains=(),
        turns=turns,
        final_payload=payload,
        usage=Usage(
            turns=len(turns), calls=len(turns), prompt_tokens=0, completion_tokens=0, wall_s=0.0, sandbox_s=0.0
        ),
        policy_versions=(0, 0),
        final_state_uri="",
    )
