"""The record of what happened: tasks, calls, chains, turns, trajectories, groups, verdicts.

All types are frozen and checked when made, so a value that exists is well formed. They are written as JSON or
Parquet by `infra.records`, stamped with SCHEMA_VERSION, and read back equal. Results wrap earlier stages; no
field is filled in later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from infra.digests import digest_of
from infra.engines.base import FinishReason, Sampling

SCHEMA_VERSION = 1

Role = Literal["main", "sub_agent", "side"]
Wire = Literal["chat", "responses", "messages"]
CallState = Literal["complete", "cancelled", "broken"]
ForkCause = Literal[
    "root",
    "continuation",
    "retry",
    "resample",
    "template",
    "retokenised",
    "rewritten",
    "compacted",
    "sub_agent",
    "side",
]
Status = Literal["completed", "budget_exhausted", "agent_fault", "infra_fault"]
ErrorClass = Literal["exit_code", "parse", "tool", "forbidden", "repeat", "timeout", "killed"]
Split = Literal["train", "held_out"]
GateOutcome = Literal["passed", "failed", "observed_failed", "not_reached"]


class RecordError(ValueError):
    """A record that contradicts itself. The message says what was got, what is wanted and where."""


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise RecordError(message)


def _check_logprobs(where: str, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
    _need(
        len(ids) == len(logprobs),
        f"{where}: {len(ids)} ids but {len(logprobs)} logprobs; each sampled token needs its own",
    )
    bad = next((i for i, x in enumerate(logprobs) if not math.isfinite(x) or x > 1e-6), None)
    _need(bad is None, f"{where}: logprob {bad} is {logprobs[bad] if bad is not None else 0}; want finite and <= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one rollout may use. `wall_time_s` guards the host; it never costs the agent reward (see faults)."""

    max_turns: int
    max_tokens: int
    wall_time_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_tokens", "wall_time_s"):
            _need(getattr(self, name) > 0, f"limits.{name} is {getattr(self, name)}; want a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task of a pool. Its suite rebuilds the whole world from (seed, horizon, tags): nothing else is stored.

    `horizon` is the number of turns of the reference solution; `tags` ('fault:wrong_port', ...) name its kin.

    >>> TaskSpec(task_id="t1", suite="service_repair", instruction="Make ./check pass.", seed=7, horizon=3,
    ...          limits=Limits(max_turns=8, max_tokens=600), tags=("fault:wrong_port",)).digest[:8]
    '72adff00'
    """

    task_id: str
    suite: str
    instruction: str
    seed: int
    horizon: int
    limits: Limits
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _need(bool(self.task_id), "task_id is empty; every task needs an id of its own")
        _need(self.horizon >= 1, f"task {self.task_id}: horizon is {self.horizon}; want at least 1 turn")

    @property
    def digest(self) -> str:
        """SHA-256 of the content: an edited task is another task."""
        return digest_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPool:
    """The tasks of one split. Raises RecordError on an id used twice."""

    name: str
    version: int
    split: Split
    tasks: tuple[TaskSpec, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for task in self.tasks:
            _need(
                task.task_id not in seen,
                f"pool {self.name}: task id {task.task_id!r} appears twice; rename or remove one of them",
            )
            seen.add(task.task_id)

    @property
    def digest(self) -> str:
        """SHA-256 over name, version, split and the digests of the tasks in order."""
        return digest_of([self.name, self.version, self.split, [t.digest for t in self.tasks]])


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One request to the model, linear in the conversation.

    The full prompt is: parent's prompt + parent's completion + `prompt_tail_ids` (no parent: the tail is all).
    `completion_ids[C]`, `completion_logprobs[C]` (nats, of the distribution sampled from). `delivered_count`
    tokens reached the client. A `broken` call (lost logprobs, engine error) trains nothing.

    Worked example, two overlapping calls of one rollout: the main agent's call `a` is open while a title call
    `s` (role `side`, cause `side`, no parent) comes and goes; the next call `b` has `parent_call_id='a'` and
    cause `continuation`, whatever order they ended in.
    """

    call_id: str
    rollout_id: str
    agent_id: str
    role: Role
    parent_call_id: str | None
    cause: ForkCause
    wire: Wire
    prompt_tail_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    completion_logprobs: tuple[float, ...]
    delivered_count: int
    state: CallState
    policy_version: int
    sampling: Sampling
    finish_reason: FinishReason
    tokenizer_digest: str
    started_at: float
    latency_s: float

    def __post_init__(self) -> None:
        where = f"call {self.call_id}"
        if self.state != "broken":
            _check_logprobs(where, self.completion_ids, self.completion_logprobs)
        _need(
            0 <= self.delivered_count <= len(self.completion_ids),
            f"{where}: delivered_count {self.delivered_count} of {len(self.completion_ids)} tokens",
        )
        continues = self.cause in ("continuation", "retry", "resample") and self.parent_call_id is not None
        _need(
            continues or self.parent_call_id is None or self.cause not in ("root", "side"),
            f"{where}: cause {self.cause} with parent {self.parent_call_id}; a root or side call has none",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of tokens from one source. Trainable: sampled by the policy, `logprobs[n]` (nats) beside `ids[n]`.

    Not trainable: rendered by us or the harness; `logprobs` is empty and `policy_version` is -1.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    trainable: bool
    call_id: str
    policy_version: int

    def __post_init__(self) -> None:
        if self.trainable:
            _check_logprobs(f"segment of call {self.call_id}", self.ids, self.logprobs)
            _need(self.policy_version >= 0, f"segment of call {self.call_id}: sampled tokens need a policy version")
        else:
            _need(not self.logprobs, f"segment of call {self.call_id}: rendered tokens carry no logprobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Calls whose tokens extend one another: the only thing that becomes training samples.

    Worked example, a rollout in three chains: `c0` (main, cause `root`) holds calls 1-5; the harness compacts its
    history, so call 6 starts `c1` (parent `c0`, cause `compacted`); a helper it launched is `c2` (role
    `sub_agent`, cause `sub_agent`). Every sampled token stands in exactly one trainable segment of one chain.
    """

    chain_id: str
    rollout_id: str
    agent_id: str
    role: Role
    parent_chain_id: str | None
    fork_cause: ForkCause
    segments: tuple[Segment, ...]

    @property
    def num_trainable(self) -> int:
        """Sampled tokens in this chain."""
        return sum(len(s.ids) for s in self.segments if s.trainable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action and its observation. `thought` is the reasoning channel: gate 1 never judges it, gate 2 does.

    `action` is the shell command (or the raw text when the call was malformed: `error_class` is then 'parse').
    `exit_code` is None where no process ended. `error_class` is what the suite calls an error, never exit code
    alone: a check that reports failure is not an error of the agent.
    """

    index: int
    call_id: str
    tool_call_id: str
    agent_id: str
    source: Literal["sandbox", "wire"]
    thought: str
    action: str
    observation: str
    exit_code: int | None
    error_class: ErrorClass | None
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a rollout used. `prompt_tokens` counts rendered tokens once (tails), not once per call."""

    turns: int
    calls: int
    prompt_tokens: int
    completion_tokens: int
    wall_s: float
    sandbox_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout.

    `status` is how it ended and is never reward: 'completed' (the agent said it is done), 'budget_exhausted',
    'agent_fault' (it broke its box or did what is forbidden), 'infra_fault' (ours: no reward, no evidence).
    `fault` says what broke, empty when nothing did. `final_payload` is the text the agent handed in as its final
    answer, None if it never did; `final_thought` is its reasoning beside it. `final_state_uri` names the files it
    left, for grading in a fresh box.

    Worked example, a refill: index 3 of a group meets a dead engine -> attempt 0 has status 'infra_fault' and is
    excluded; the loop runs (index 3, attempt 1) and that one becomes the member.
    """

    rollout_id: str
    group_id: str
    index: int
    attempt: int
    task_id: str
    status: Status
    fault: str
    chains: tuple[Chain, ...]
    turns: tuple[Turn, ...]
    final_payload: str | None
    usage: Usage
    policy_versions: tuple[int, int]
    final_state_uri: str
    final_thought: str = ""

    def __post_init__(self) -> None:
        _need(
            self.status != "infra_fault" or bool(self.fault),
            f"rollout {self.rollout_id}: an infra fault must say what broke in `fault`",
        )
        low, high = self.policy_versions
        _need(low <= high, f"rollout {self.rollout_id}: policy versions {low}..{high} are in the wrong order")

    @property
    def num_trainable(self) -> int:
        """Sampled tokens over all chains."""
        return sum(c.num_trainable for c in self.chains)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A rollout that is no member of its group, and why."""

    rollout_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The trajectories of one selection of a task; `members` are valid, in order of index.

    `complete` is False when refills ran out: the group is used with at least 2 members, and this says so.
    """

    group_id: str
    task_id: str
    task_digest: str
    requested_size: int
    members: tuple[Trajectory, ...]
    excluded: tuple[Exclusion, ...] = ()

    def __post_init__(self) -> None:
        _need(
            all(m.group_id == self.group_id for m in self.members),
            f"group {self.group_id}: a member belongs to another group",
        )
        _need(
            all(m.status != "infra_fault" for m in self.members),
            f"group {self.group_id}: an infra fault is no member; put it in `excluded`",
        )
        _need(
            len({m.index for m in self.members}) == len(self.members),
            f"group {self.group_id}: two members have the same index",
        )

    @property
    def complete(self) -> bool:
        """Whether all requested members are there."""
        return len(self.members) == self.requested_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """One gate's outcome. 'observed_failed': the gate is in log-only mode and would have failed."""

    name: str
    outcome: GateOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A named number in [0, 1], given only past the gates."""

    name: str
    value: float

    def __post_init__(self) -> None:
        _need(0 <= self.value <= 1, f"score {self.name} is {self.value}; want a number in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gates in order, then the scores. A failed gate means reward 0 and no score."""

    gates: tuple[GateResult, ...]
    scores: tuple[Score, ...]
    reward: float
    passed: bool

    def __post_init__(self) -> None:
        failed = any(g.outcome == "failed" for g in self.gates)
        paid = self.reward != 0 or self.scores or self.passed
        _need(not (failed and paid), "a failed gate gives reward 0, no score")
        _need(0 <= self.reward <= 1, f"reward is {self.reward}; want a number in [0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """No verdict: the fault is ours. Carries no reward and is no evidence."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A rollout and what became of it."""

    rollout_id: str
    group_id: str
    task_id: str
    result: Verdict | Unjudged

    @property
    def reward(self) -> float | None:
        """The reward in [0, 1], None where the fault was ours."""
        return self.result.reward if isinstance(self.result, Verdict) else None

    @property
    def passed(self) -> bool:
        """Whether every gate passed and the task was solved."""
        return isinstance(self.result, Verdict) and self.result.passed
