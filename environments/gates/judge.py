"""The judge: format -> invariance -> execution. The first gate that fails sets reward 0 and stops.

Which gate says what, where a rollout did not end by the agent's own word:

- `infra_fault`: no gate; `Unjudged`. Ours: no reward, no gradient, no evidence.
- `budget_exhausted` or `agent_fault`: format judges only what was handed in (nothing is not malformed), invariance
  judges all that was done, and if both pass, execution fails with the status as its reason, running no box. So the
  pass rate of each gate keeps its own meaning: form, conduct, result.
- `completed`: all three; a missing payload fails format.

A gate in `observe` mode (warm-up) records `observed_failed`, and the next gate runs. Execution has no such mode: it
is the reward itself.
"""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass, field, replace

from environments.gates.base import GateMode, Prefix, PrefixGate
from environments.gates.execution import NAME as EXECUTION
from environments.gates.execution import execute, not_finished
from environments.gates.format_gate import FormatGate
from environments.gates.invariance_gate import InvarianceGate
from environments.sandboxes.base import SandboxError, SandboxProvider
from environments.suites.base import Suite
from environments.types import GateResult, Judged, Score, TaskSpec, Trajectory, Unjudged, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """How rollouts are judged. `artifact` is the path below workdir whose text the format scope `artifact` judges."""

    format: FormatGate = field(default_factory=FormatGate)
    format_mode: GateMode = "enforce"
    invariance: InvarianceGate = field(default_factory=InvarianceGate)
    invariance_mode: GateMode = "enforce"
    artifact: str | None = None

    def __post_init__(self) -> None:
        wants = "artifact" in self.format.scope
        if wants != (self.artifact is not None):
            raise ValueError(
                f"gates: format scope is {self.format.scope} and artifact is {self.artifact!r}; "
                "give both the scope 'artifact' and its path, or neither"
            )

    @property
    def prefix_gates(self) -> tuple[tuple[PrefixGate, GateMode], ...]:
        """The pure gates in order, each with its mode."""
        return ((self.format, self.format_mode), (self.invariance, self.invariance_mode))


def check_prefix(prefix: Prefix, suite: Suite, config: GateConfig) -> GateResult | None:
    """The first enforced gate that a running rollout has failed (stop at once), None to go on. Pure; never raises."""
    for gate, mode in config.prefix_gates:
        result = gate.check(prefix, suite)
        if result.outcome == "failed" and mode == "enforce":
            return result
    return None


def _observed(result: GateResult, mode: GateMode) -> GateResult:
    watched = mode == "observe" and result.outcome == "failed"
    return replace(result, outcome="observed_failed") if watched else result


def _artifact(path: str | None, final_state: bytes | None) -> str | None:
    """The artifact's text, None where there is no such regular file. Undecodable bytes become U+FFFD."""
    if path is None or final_state is None:
        return None
    with tarfile.open(fileobj=io.BytesIO(final_state)) as tar:
        for member in tar:
            if member.name.removeprefix("./") == path and member.isfile():
                stream = tar.extractfile(member)
                return stream.read().decode("utf-8", "replace") if stream is not None else None
    return None


def _prefix(trajectory: Trajectory, task: TaskSpec, final_state: bytes | None, config: GateConfig) -> Prefix:
    return Prefix(
        task=task,
        turns=trajectory.turns,
        final_payload=trajectory.final_payload,
        final_thought=trajectory.final_thought,
        finished=trajectory.status == "completed",
        artifact=_artifact(config.artifact, final_state),
    )


def _failed(gates: list[GateResult], names: list[str]) -> Verdict:
    rest = tuple(GateResult(name=name, outcome="not_reached") for name in names[len(gates) :])
    return Verdict(gates=(*gates, *rest), scores=(), reward=0.0, passed=False)


async def judge(
    trajectory: Trajectory,
    task: TaskSpec,
    suite: Suite,
    boxes: SandboxProvider,
    final_state: bytes | None,
    config: GateConfig,
) -> Judged:
    """Judge one rollout with authority. `final_state` is the tar it left, None where it left none.

    Reward is 1 past all gates and 0 otherwise. A host failure while grading, or a completed rollout whose state was
    lost, is ours: Unjudged.
    """
    result: Verdict | Unjudged
    if trajectory.status == "infra_fault":
        result = Unjudged(reason=trajectory.fault)
    else:
        result = await _verdict(trajectory, task, suite, boxes, final_state, config)
    return Judged(
        rollout_id=trajectory.rollout_id, group_id=trajectory.group_id, task_id=trajectory.task_id, result=result
    )


async def _verdict(
    trajectory: Trajectory,
    task: TaskSpec,
    suite: Suite,
    boxes: SandboxProvider,
    final_state: bytes | None,
    config: GateConfig,
) -> Verdict | Unjudged:
    names = [gate.name for gate, _ in config.prefix_gates] + [EXECUTION]
    prefix = _prefix(trajectory, task, final_state, config)
    gates: list[GateResult] = []
    for gate, mode in config.prefix_gates:
        gates.append(_observed(gate.check(prefix, suite), mode))
        if gates[-1].outcome == "failed":
            return _failed(gates, names)
    unfinished = not_finished(trajectory)
    if unfinished is not None:
        return _failed([*gates, unfinished], names)
    if final_state is None:
        return Unjudged(reason=f"rollout {trajectory.rollout_id}: its final state is missing from the store")
    scores: tuple[Score, ...]
    try:
        last, scores = await execute(trajectory, task, suite, boxes, final_state)
    except SandboxError as error:
        return Unjudged(reason=f"the grading box failed: {error}")
    if last.outcome == "failed":
        return _failed([*gates, last], names)
    return Verdict(gates=(*gates, last), scores=scores, reward=1.0, passed=True)
