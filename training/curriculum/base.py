"""The curriculum's words: evidence in, selections out, and the protocol every strategy follows.

A strategy holds no state. `fold(state, evidence)` gives the next state; `select(state, n, ...)` reads it. So a
state saved after iteration k and the evidence of iteration k+1 always give the same state k+1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from environments.types import Group, Judged, TaskPool, Trajectory, Verdict

if TYPE_CHECKING:
    from training.curriculum.beliefs import Beliefs
    from training.curriculum.ledger import State

SCHEMA_VERSION = 1

Kind = Literal["training", "probe"]


class CurriculumError(ValueError):
    """Input the curriculum cannot use. The message says what was got, what is wanted and how to mend it."""


def need(condition: bool, message: str) -> None:
    """Raise CurriculumError(message) unless `condition`."""
    if not condition:
        raise CurriculumError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one judged rollout tells about its task. Rollouts whose fault was ours never become evidence.

    `passed` feeds the posterior; `reward` in [0, 1] decides whether a group carries gradient. `tokens` are the
    sampled ones. `policy_version` is the version that sampled it (the oldest, if it changed underway).
    """

    rollout_id: str
    group_id: str
    task_id: str
    task_digest: str
    policy_version: int
    passed: bool
    reward: float
    kind: Kind = "training"
    tokens: int = 0

    def __post_init__(self) -> None:
        if self.rollout_id and self.policy_version >= 0 and 0 <= self.reward <= 1 and self.tokens >= 0:
            return  # the common case, without the cost of messages
        where = f"evidence of rollout {self.rollout_id!r}"
        need(bool(self.rollout_id), "evidence has an empty rollout_id; it could not be deduplicated")
        need(self.policy_version >= 0, f"{where}: policy_version is {self.policy_version}; want >= 0")
        need(
            0 <= self.reward <= 1,
            f"{where}: reward is {self.reward}; want a finite number in [0, 1]",
        )
        need(self.tokens >= 0, f"{where}: tokens is {self.tokens}; want >= 0")


def evidence_of(group: Group, judged: Iterable[Judged], *, kind: Kind = "training") -> tuple[Evidence, ...]:
    """The evidence of a group's valid members, in their order. Unjudged rollouts (our fault) give none.

    Raises CurriculumError when a member has no verdict record at all: that is a lost file, not a fault.
    """
    by_id = {j.rollout_id: j for j in judged}
    missing = [m.rollout_id for m in group.members if m.rollout_id not in by_id]
    need(not missing, f"group {group.group_id}: no verdict for {missing}; judge every member first")
    return tuple(
        _one(group, member, result, kind)
        for member in group.members
        if isinstance(result := by_id[member.rollout_id].result, Verdict)
    )


def _one(group: Group, member: Trajectory, verdict: Verdict, kind: Kind) -> Evidence:
    return Evidence(
        rollout_id=member.rollout_id,
        group_id=group.group_id,
        task_id=group.task_id,
        task_digest=group.task_digest,
        policy_version=member.policy_versions[0],
        passed=verdict.passed,
        reward=verdict.reward,
        kind=kind,
        tokens=member.num_trainable,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One task that was chosen: how many rollouts, what it is believed to be, and why.

    `alpha` and `beta` are the Beta posterior of its pass rate when it was chosen, `mean` and the central 90%
    interval `low`..`high` are that posterior's. `signal` is the gradient signal per rollout expected under it.
    `state` is one word ('new', 'band', 'easy', 'hard', 'retired', ...). `trains` is False where the rollouts are
    only a measurement (the literal rule's probes).
    """

    task_id: str
    task_digest: str
    kind: Kind
    group_size: int
    state: str
    why: str
    alpha: float
    beta: float
    mean: float
    low: float
    high: float
    signal: float
    trains: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to roll out next, in order. `tally` counts the pool's tasks by state, chosen or not."""

    strategy: str
    policy_version: int
    seed: int
    decisions: tuple[Decision, ...]
    tally: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_rollouts(self) -> int:
        """Rollouts this selection costs, probes included."""
        return sum(d.group_size for d in self.decisions)

    @property
    def num_probe_rollouts(self) -> int:
        """Rollouts spent on measuring."""
        return sum(d.group_size for d in self.decisions if d.kind == "probe")

    def with_refills(self, refills: Sequence[Selection]) -> Selection:
        """This selection and what replaced its groups without gradient, as one."""
        decisions = tuple(d for s in (self, *refills) for d in s.decisions)
        replaced = f"{len(refills)} refill(s) drew {len(decisions) - len(self.decisions)} more groups"
        notes = (*self.notes, *(n for s in refills for n in s.notes), *((replaced,) if refills else ()))
        return replace(self, decisions=decisions, notes=notes)


class Strategy(Protocol):
    """How tasks are chosen. Every method is a pure function; randomness enters as `seed`.

    One iteration: `probes` (often empty) -> roll out -> `fold`; `select` -> roll out -> `fold`. Strategies with
    `max_refills` > 0 (dynamic sampling, GRESO) are asked again with the evidence folded and another seed, up to
    that many times, for as many groups as still lack gradient; tasks already visited by this policy version are
    not drawn again.
    """

    @property
    def name(self) -> str:
        """The strategy's name in configs and logs."""
        ...

    @property
    def group_size(self) -> int:
        """Rollouts in an ordinary group."""
        ...

    @property
    def max_refills(self) -> int:
        """How often `select` may be asked again within one iteration."""
        ...

    def start(self, pool: TaskPool) -> State:
        """The state before any evidence."""
        ...

    def probes(self, state: State, *, policy_version: int, seed: int) -> Selection:
        """What must be measured before `select`; empty for strategies that learn from training rollouts."""
        ...

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """Choose work worth about `n` groups of `group_size` rollouts (never more rollouts than that)."""
        ...

    def fold(self, state: State, evidence: Sequence[Evidence]) -> State:
        """The next state. Evidence seen before, too old, or of tasks not in the pool changes only counters."""
        ...

    def beliefs(self, state: State, policy_version: int) -> Beliefs:
        """The Beta posterior of every task's pass rate at a policy version."""
        ...

    def explain(self, state: State, task_id: str, *, policy_version: int) -> tuple[str, ...]:
        """Lines for people: posterior, evidence, decision and why. Raises CurriculumError on an unknown task."""
        ...
