"""Everything the report shows, as one record: the page can be built again from it alone, at any time."""

from __future__ import annotations

from dataclasses import dataclass

from training.evaluation.behaviour import Behaviour
from training.evaluation.comparison import Comparison
from training.evaluation.drift import Drift
from training.evaluation.estimates import Estimate
from training.evaluation.first_error import ErrorsByTurn, Incidence
from training.evaluation.promotion import PromotionVerdict
from training.evaluation.recorded import Recorded
from training.evaluation.success import Band, HalfHorizon

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """One policy on the held-out tasks. `step_success` is its share of turns without error, for the curve p^T.

    `all_of_k[k-1]` is pass^k, the chance that k attempts at a task all succeed, up to the attempts every task had.
    """

    label: str
    policy_version: int
    success: Estimate
    strict: Estimate
    all_of_k: tuple[float, ...]
    bands: tuple[Band, ...]
    half_horizon: HalfHorizon | None
    step_success: float | None
    drift: Drift
    first_error: Incidence
    errors: ErrorsByTurn
    context_tokens: tuple[float, ...]
    behaviour: Behaviour


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCount:
    """How often one gate came to each outcome in one iteration."""

    name: str
    passed: int
    failed: int
    observed_failed: int
    not_reached: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShares:
    """Shares of an iteration's groups, summing to 1. Only `mixed` groups carry gradient."""

    all_fail: float
    mixed: float
    all_pass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What the training step reported, by the names of `training.reports.StepReport`; KL in nats."""

    kl_to_behaviour: float
    kl_to_start: float | None
    rare_token_gradient_share: float
    rare_word_counts: tuple[tuple[str, int], ...]
    decile_gradient_share: tuple[float, ...]
    ratio_histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotWhole:
    """What training had to do without. `incomplete` groups are used with members missing; `too_small` ones have fewer
    than 2 judged members and are not; `unjudged` counts rollouts."""

    incomplete: int
    too_small: int
    unjudged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationPoint:
    """One iteration of training. `train` is the pass rate of its rollouts, `held_out` a benchmark if one was run.

    `step` is None where no step was taken. `pass_rates[i]` belongs to `ReportData.tasks[i]`, None where the task was
    not selected.
    """

    iteration: int
    policy_version: int
    num_rollouts: int
    train: Estimate
    held_out: Estimate | None
    groups: GroupShares
    gates: tuple[GateCount, ...]
    behaviour: Behaviour
    step: StepView | None
    not_whole: NotWhole
    recorded: Recorded
    pass_rates: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLabel:
    """A row of the heat map."""

    task_id: str
    horizon: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A sampled token and the probability that it was drawn with."""

    text: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """A turn to read. `tokens` is what was sampled; empty where it is not known, then thought and action are shown."""

    index: int
    tokens: tuple[Token, ...]
    thought: str
    action: str
    observation: str
    exit_code: int | None
    error_class: str | None
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryView:
    """A rollout to read turn by turn. `final_tokens` is the sampled final answer."""

    title: str
    rollout_id: str
    task_id: str
    instruction: str
    horizon: int
    policy_version: int
    status: str
    reward: float
    gates: tuple[tuple[str, str, str], ...]
    turns: tuple[TurnView, ...]
    final_tokens: tuple[Token, ...]
    final_payload: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Rollouts used, each counted once, and how many uniform choice would have needed for as many mixed groups.

    `uniform_equivalent` is to be held against `training + probes`; None: not known.
    """

    training: int
    probes: int
    uniform_equivalent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Wall time of a stage over the whole run, in seconds."""

    name: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """The whole report. `facts` are (name, value) pairs for the record: run id, model, suite, seed, code version."""

    title: str
    facts: tuple[tuple[str, str], ...]
    comparison: Comparison
    greedy: Comparison | None
    verdict: PromotionVerdict | None
    before: PolicyView
    after: PolicyView
    tasks: tuple[TaskLabel, ...]
    iterations: tuple[IterationPoint, ...]
    spend: Spend
    stages: tuple[StageTime, ...]
    trajectories: tuple[TrajectoryView, ...]

    def __post_init__(self) -> None:
        for point in self.iterations:
            if len(point.pass_rates) != len(self.tasks):
                raise ValueError(
                    f"report: iteration {point.iteration} has {len(point.pass_rates)} pass rates for "
                    f"{len(self.tasks)} tasks; give one for each, None where a task was not selected"
                )
