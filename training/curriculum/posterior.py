"""The default: keep a fading Beta posterior per task, train where the expected gradient signal is highest.

Training rollouts are the evidence, so nothing is probed twice; a small stratified share of small groups looks at
what has not been seen for long. A task retires when it is probably solved (P(p >= .75) high) and comes back when
it probably no longer is; retired tasks are looked at again on a schedule; tasks that always fail keep a small
share of larger groups. A Thompson draw has a say in every score: what is uncertain gets tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from environments.types import TaskPool
from training.curriculum import ledger, pool
from training.curriculum.base import Evidence, Selection, need
from training.curriculum.beliefs import Beliefs, DriftingBeta
from training.curriculum.decide import Pick, check_owner, check_request, decisions_of, generator, tally_of, top_rows
from training.curriculum.ledger import Bools, Floats, Ints, State
from training.curriculum.prior import FeaturePrior
from training.curriculum.signal import (
    AdvantageMode,
    interval_90,
    mass_per_rollout,
    mixed_predictive,
    predictive_mass,
    probability_at_least,
)

WORDS = ("new", "hard", "band", "easy", "retired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Settings of the default strategy.

    `advantage` is the estimator the trainer uses: it decides what signal means. `prior` says where learning starts:
    how evidence fades, what stands in for it, where tasks have moved meanwhile. A task retires at
    P(p >= `solved`) > `retire_when` and returns at < `readmit_when` (hysteresis); while retired its score counts
    `retired_weight`, and it is looked at again every `recheck_every` versions. `probe_share` of the rollouts go to
    groups of `probe_size`: on retired tasks that are due (one in four while some tasks were never seen), then on what
    was not seen for longest, feature by feature. `hard_share` of them go to groups of
    `large_group` on tasks whose last two visits failed throughout. The rest goes by score: the signal per rollout,
    `exploration` parts of it at a Thompson draw and the rest expected. A task seen before gets `large_group` rollouts
    where that yields `large_gain` times the signal per rollout or more (with `mean` advantages it cannot). That is
    about the root of 2, as the signal sums squares: where it grows 1.4 times, the mean gradient grows 1.2 times, and
    as many rollouts of another task would teach something else. A task that was met k versions ago counts
    1 - `repeat_cost` ** k of its score, which spreads lessons over more tasks. Sizes left None follow `group_size`:
    twice it, and half of it (at least 2).
    """

    group_size: int = 8
    large_group: int | None = None
    probe_size: int | None = None
    advantage: AdvantageMode = "std"
    max_age: int = 16
    solved: float = 0.75
    too_hard: float = 0.20
    retire_when: float = 0.90
    readmit_when: float = 0.50
    retired_weight: float = 0.5
    recheck_every: int = 20
    probe_share: float = 0.05
    hard_share: float = 0.03
    exploration: float = 0.3
    large_gain: float = 1.4
    repeat_cost: float = 0.0
    prior: FeaturePrior = field(default_factory=FeaturePrior)
    name: str = "posterior"
    max_refills: int = 0

    def __post_init__(self) -> None:
        need(self.group_size >= 2, f"group_size is {self.group_size}; want at least 2")
        need(2 <= self.small <= self.group_size, f"probe_size is {self.small}; want 2..{self.group_size}")
        need(self.large >= self.group_size, f"large_group {self.large} is under {self.group_size}")
        need(
            0 < self.readmit_when < self.retire_when < 1,
            f"readmit_when {self.readmit_when} and retire_when {self.retire_when}: want 0 < readmit < retire < 1; "
            "the gap between them is the hysteresis",
        )
        need(0 < self.too_hard < self.solved < 1, f"band {self.too_hard}..{self.solved}: want 0 < low < high < 1")
        shares = self.probe_share + self.hard_share
        need(
            self.probe_share >= 0 and self.hard_share >= 0 and shares <= 0.5,
            f"probe_share + hard_share is {shares}; want each >= 0 and at most half in all",
        )
        need(0 <= self.exploration <= 1, f"exploration is {self.exploration}; want [0, 1]")
        need(0 <= self.repeat_cost < 1, f"repeat_cost is {self.repeat_cost}; want 0 (none) to below 1")
        need(self.recheck_every >= 1, f"recheck_every is {self.recheck_every}; want at least 1 policy version")
        need(0 <= self.retired_weight <= 1, f"retired_weight is {self.retired_weight}; want [0, 1]")

    @property
    def small(self) -> int:
        """Rollouts in a probe."""
        return max(2, self.group_size // 2) if self.probe_size is None else self.probe_size

    @property
    def large(self) -> int:
        """Rollouts in a large group."""
        return 2 * self.group_size if self.large_group is None else self.large_group

    @property
    def model(self) -> DriftingBeta:
        """How evidence becomes belief."""
        return DriftingBeta(prior=self.prior, max_age=self.max_age)

    def start(self, tasks: TaskPool) -> State:
        """The state before any evidence."""
        return pool.start(tasks, self.name)

    def beliefs(self, state: State, policy_version: int) -> Beliefs:
        """What is believed of every task at a policy version."""
        return self.model.at(state, policy_version)

    def fold(self, state: State, evidence: Sequence[Evidence]) -> State:
        """Add evidence, then retire and re-admit among the tasks it touched."""
        check_owner(self.name, state)
        after, visits = ledger.fold(state, evidence, self.model)
        for visit in visits:
            after = self._mark(self.model.learn(after, visit), visit.rows)
        return after

    def _mark(self, state: State, rows: Ints) -> State:
        """Retire and re-admit by what is believed right after a visit: only evidence changes a mark."""
        c = state.columns
        standing = self.model.of(state, state.version, rows)
        solved = probability_at_least(standing.alpha, standing.beta, self.solved)
        before = c.retired[rows]
        retired = np.where(before == 1, solved >= self.readmit_when, solved > self.retire_when).astype(np.int64)
        marks, changed_at = c.retired.copy(), c.changed_at.copy()
        marks[rows] = retired
        changed_at[rows] = np.where(retired != before, state.version, c.changed_at[rows])
        return dataclasses.replace(state, columns=dataclasses.replace(c, retired=marks, changed_at=changed_at))

    def probes(self, state: State, *, policy_version: int, seed: int) -> Selection:
        """Nothing: probes are part of `select`, train like any group, and are counted in its rollouts."""
        check_request(self.name, state, 1, policy_version)
        return Selection(strategy=self.name, policy_version=policy_version, seed=seed, decisions=())

    def select(self, state: State, n: int, *, policy_version: int, seed: int) -> Selection:
        """Work worth at most `n * group_size` rollouts: re-checks and probes, hard tasks, then the best draws."""
        check_request(self.name, state, n, policy_version)
        rng = generator(seed, policy_version, 0)
        beliefs = self.beliefs(state, policy_version)
        budget = n * self.group_size
        picks = self._looks(state, policy_version, budget, rng)
        left = budget - sum(p.group_size for p in picks)
        picks += self._hard(state, budget, left, {p.row for p in picks}, rng)
        left = budget - sum(p.group_size for p in picks)
        picks += self._best(state, beliefs, policy_version, left, {p.row for p in picks}, rng)
        return Selection(
            strategy=self.name,
            policy_version=policy_version,
            seed=seed,
            decisions=decisions_of(state, beliefs, picks, self.advantage),
            tally=tally_of(WORDS, self.words(state, beliefs)),
        )

    def words(self, state: State, beliefs: Beliefs) -> Ints:
        """Each task's state as an index into WORDS. [N]"""
        mean = beliefs.mean_N
        code = 1 + (mean >= self.too_hard).astype(np.int64) + (mean >= self.solved)
        code = np.where(state.columns.visits == 0, 0, code)
        return np.where(state.columns.retired == 1, 4, code)

    def _looks(self, state: State, policy_version: int, budget: int, rng: np.random.Generator) -> list[Pick]:
        """Small groups: first retired tasks that are due, then, feature by feature, what was not seen for longest.

        While some tasks were never seen, re-checks get one look in four: nothing is known of those, and what a few
        retired ones show moves all their kin.
        """
        n = int(self.probe_share * budget / self.small + rng.random())
        again = int(n / 4 + rng.random()) if (state.columns.visits == 0).any() else n
        age = policy_version - state.columns.last_version
        retired = state.columns.retired == 1
        due = np.flatnonzero(retired & (age >= self.recheck_every))
        due = due[np.argsort(-age[due], kind="stable")][:again]
        picks = [
            self._look(int(r), "retired", f"retired, not looked at for {age[r]} versions (every {self.recheck_every})")
            for r in due
        ]
        for feature, r in _longest_unseen(state, ~retired, age, n - len(due), rng):
            seen = state.columns.last_version[r]
            why = "never seen" if seen < 0 else f"last seen at version {seen}"
            picks.append(self._look(r, "probe", f"probe of {feature}: {why}"))
        return picks

    def _look(self, row: int, word: str, why: str) -> Pick:
        return Pick(row=row, group_size=self.small, state=word, why=why, kind="probe")

    def _hard(self, state: State, budget: int, left: int, taken: set[int], rng: np.random.Generator) -> list[Pick]:
        """Large groups for what always fails: a share of the budget, of what is `left` of it."""
        n = min(int(self.hard_share * budget / self.large + rng.random()), left // self.large)
        c = state.columns
        stuck = np.flatnonzero((c.batch_passes == 0) & (c.streak >= 2))
        rows = [int(r) for r in rng.permutation(stuck) if int(r) not in taken][:n]
        return [
            Pick(
                row=r,
                group_size=self.large,
                state="hard",
                why=f"{c.streak[r]} visits failed throughout; kept alive with a larger group",
            )
            for r in rows
        ]

    def _best(
        self,
        state: State,
        beliefs: Beliefs,
        policy_version: int,
        budget: int,
        taken: set[int],
        rng: np.random.Generator,
    ) -> list[Pick]:
        """Rows by score, best first, until the budget is spent; each with the group size that suits it."""
        drawn = rng.beta(beliefs.alpha_N, beliefs.beta_N)
        score = self._score(beliefs, drawn, self.group_size)
        larger = self._score(beliefs, drawn, self.large)
        large = (state.columns.visits > 0) & (larger > self.large_gain * score) & (self.large <= budget)
        score = np.where(large, larger, score) * np.where(state.columns.retired == 1, self.retired_weight, 1.0)
        if self.repeat_cost:  # a power for each of 100,000 tasks is a tenth of a choice
            score *= self._rested(state, policy_version)
        score[list(taken)] = -1.0
        size = np.where(large, self.large, self.group_size)
        order = top_rows(score, budget // self.group_size)
        order = order[np.cumsum(size[order]) <= budget]
        code = self.words(state, beliefs)
        return [
            Pick(
                row=int(r),
                group_size=int(size[r]),
                state=WORDS[code[r]],
                why=f"rank {rank} of {len(score)}: expected gradient {score[r]:.2f}, drew a rate of {drawn[r]:.2f}",
            )
            for rank, r in enumerate(order, start=1)
        ]

    def _rested(self, state: State, policy_version: int) -> Floats:
        """What another lesson on each task is worth beside a first one. [N]"""
        last = state.columns.last_version
        worn = self.repeat_cost ** np.maximum(policy_version - last, 1)
        return np.asarray(np.where(last >= 0, 1.0 - worn, 1.0), dtype=np.float64)

    def _score(self, beliefs: Beliefs, drawn: Floats, size: int) -> Floats:
        """Signal per rollout: `exploration` parts at the draw, the rest expected under the posterior. [N]"""
        expected = predictive_mass(beliefs.alpha_N, beliefs.beta_N, size, self.advantage)
        return self.exploration * mass_per_rollout(drawn, size, self.advantage) + (1 - self.exploration) * expected

    def explain(self, state: State, task_id: str, *, policy_version: int) -> tuple[str, ...]:
        """Posterior, evidence, mark, and where the task stands among the others."""
        row = state.tasks.row(task_id)
        c, beliefs = state.columns, self.beliefs(state, policy_version)
        a, b = beliefs.alpha_N[row : row + 1], beliefs.beta_N[row : row + 1]
        low, high = interval_90(a, b)
        expected = mixed_predictive(beliefs.alpha_N, beliefs.beta_N, self.group_size)
        rank = int((expected > expected[row]).sum()) + 1
        word = WORDS[self.words(state, beliefs)[row]]
        since = f" since version {c.changed_at[row]}" if word == "retired" else ""
        return (
            f"{task_id}: {word}{since}",
            f"pass rate {a[0] / (a[0] + b[0]):.2f}, 90% interval {low[0]:.2f} to {high[0]:.2f}, "
            f"Beta({a[0]:.2f}, {b[0]:.2f})",
            f"evidence: {c.rollouts[row]} rollouts in {c.visits[row]} visits, {c.passed[row]} passed; "
            f"with the prior worth {a[0] + b[0]:.1f} rollouts at version {policy_version}",
            f"newest visit: {c.batch_passes[row]} of {c.batch_size[row]} at version {c.last_version[row]}"
            if c.visits[row]
            else "newest visit: none",
            prior_line(state, beliefs, row),
            f"P(p >= {self.solved:.2f}) = {probability_at_least(a, b, self.solved)[0]:.2f}; "
            f"retires above {self.retire_when:.2f}, returns below {self.readmit_when:.2f}",
            f"P(a group of {self.group_size} carries gradient) = {expected[row]:.2f}: rank {rank} of {len(expected)}",
        )


def prior_line(state: State, beliefs: Beliefs, row: int) -> str:
    """What a task's features say of it, the weightiest first, in logits; what would be rounded to 0.0 is left out."""
    kinship, weight = state.tasks.kinship, state.learned.weight_F
    said = [(kinship.names[f], weight[f]) for f in kinship.borne_by(row)]
    said.append(("its own lessons", state.columns.gain[row]))
    said = sorted(((name, w) for name, w in said if abs(w) >= 0.05), key=lambda part: -abs(part[1]))
    parts = ", ".join(f"{name} {w:+.1f}" for name, w in said) or "nothing is known of its features yet"
    return f"prior {beliefs.prior_mean_N[row]:.2f}, worth {beliefs.strength:.1f} rollouts; in logits: {parts}"


def _longest_unseen(
    state: State, free_N: Bools, age: Ints, n: int, rng: np.random.Generator
) -> Iterator[tuple[str, int]]:
    """Up to `n` features at random, each with the longest unseen of the free tasks that bear it, ties at random."""
    kinship, free_N = state.tasks.kinship, free_N.copy()
    features = rng.permutation(np.arange(1, len(kinship.names))) if len(kinship.names) > 1 else np.array([0])
    for feature in features[: max(n, 0)]:
        rows = np.flatnonzero(free_N & kinship.bearers(int(feature)))
        if len(rows):
            row = int(rng.choice(rows[age[rows] == age[rows].max()]))
            free_N[row] = False
            yield kinship.names[feature], row
