"""A demonstrator that decides from what it has read alone: careful for the reference, noisy for a warm start.

It never sees the task: every move is a function of (command, observation) pairs and of its random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from environments.suites.base import ReferenceStep
from environments.suites.service_repair.acts import act_kind
from environments.suites.service_repair.blueprint import Blueprint
from environments.suites.service_repair.mistakes import wrong_command
from environments.suites.service_repair.rules import CHECK, RULES, Choice, choose

ANSWER = "done"
_FIRST = ("see what is wrong", "check first", "look what fails")
_AGAIN = ("check again", "verify it", "wait , check again", "see if it holds")
_VERIFY = ("verify first", "verify before the answer", "do not guess , check")
_NO_CHANGE = ("no change , look again", "that did not help , look again", "still wrong , look again")
_FAILED = ("that failed , check again", "an error , check again", "wait , that failed , check")
_REPEAT = ("try it again", "once more", "same again")
_DONE = ("all is well , answer", "ok , done", "check is ok , answer")
_BELIEVED = ("ok , answer", "check says ok , done", "ok cached , done")
_UNVERIFIED = ("mended , done", "that was it , answer", "should be well , answer")
_GUESS = ("try this", "may be this", "guess , set it", "try to mend it")
_LOST = ("cannot mend it , stop", "do not know , stop")
_LOOK_ROUND = ("nothing there , look around", "unclear , look around")


@dataclass(frozen=True, slots=True)
class Seen:
    """A past turn, as the agent knows it."""

    command: str
    observation: str


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The move that ends a rollout: the harness wraps `answer` in the final form."""

    thought: str
    answer: str


Move = ReferenceStep | FinalAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Probabilities: of a wrong move at a look or mend; of verifying after a mend; of looking after an error.

    `haste`: how often one who does not verify takes a mend for the last one; else he goes on with the next check.
    """

    error_rate: float
    verify_rate: float
    recover_rate: float
    haste: float = 0.35

    def __post_init__(self) -> None:
        for name in ("error_rate", "verify_rate", "recover_rate", "haste"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; want a probability")


CAREFUL = Rates(error_rate=0.0, verify_rate=1.0, recover_rate=1.0)


class Demonstrator:
    """Asked for one move at a time. With `CAREFUL` rates it takes exactly the reference's turns."""

    def __init__(self, rng: random.Random, rates: Rates = CAREFUL) -> None:
        self._rng = rng
        self._rates = rates

    def next_move(self, history: Sequence[Seen]) -> Move:
        """The next command, or the final answer, after these turns."""
        if not history:
            return self._step(_FIRST, CHECK)
        kind = act_kind(history[-1].command)
        if kind == "verify":
            return self._after_check(history)
        if kind == "inspect":
            return self._after_look(history)
        return self._after_mend(history)

    def _after_check(self, history: Sequence[Seen]) -> Move:
        shown = history[-1].observation.strip()
        if shown == "ok":
            return self._finish(_DONE)
        if shown.startswith("ok") and self._chance(self._haste):
            return self._finish(_BELIEVED)
        choice = choose(RULES, shown, {}, _commands(history))
        if choice is None:
            return self._lost(history)
        if _had_no_effect(history):
            return self._after_error(history, choice)
        return self._carefully(history, choice)

    def _after_look(self, history: Sequence[Seen]) -> Move:
        symptom = choose(RULES, _last_check(history), {})
        if symptom is None:
            return self._step(_AGAIN, CHECK)
        choice = choose(symptom.rule.then, history[-1].observation, symptom.found, _commands(history))
        if choice is None:
            return self._lost(history)
        return self._carefully(history, choice)

    def _after_mend(self, history: Sequence[Seen]) -> Move:
        if history[-1].observation.strip():
            if self._chance(self._rates.recover_rate):
                return self._step(_FAILED, CHECK)
            if self._chance(0.5):
                return self._step(_REPEAT, history[-1].command)
        if self._chance(self._rates.verify_rate):
            return self._step(_AGAIN + _VERIFY, CHECK)
        if self._chance(self._rates.haste):
            return self._finish(_UNVERIFIED)
        return self._step(_AGAIN, CHECK)

    def _after_error(self, history: Sequence[Seen], choice: Choice) -> Move:
        """The last mend changed nothing: look again, or do the same again, or try something else."""
        if self._chance(self._rates.recover_rate):
            thoughts = _NO_CHANGE if choice.rule.then else choice.rule.thoughts
            return self._step(thoughts, choice.command, choice)
        if self._chance(0.5):
            return self._step(_REPEAT, history[-2].command)
        return self._step(_GUESS, wrong_command(_last_check(history), choice, self._rng))

    def _carefully(self, history: Sequence[Seen], choice: Choice) -> Move:
        """The rule's move, or with `error_rate` a plausible wrong one."""
        if not self._chance(self._rates.error_rate):
            return self._step(choice.rule.thoughts, choice.command, choice)
        thoughts = _GUESS if choice.rule.then else choice.rule.thoughts + _GUESS
        return self._step(thoughts, wrong_command(_last_check(history), choice, self._rng), choice)

    def _lost(self, history: Sequence[Seen]) -> Move:
        """Nothing known fits: look around once, then give up."""
        app = _last_check(history).removeprefix("check: ").split("/")[0].split(":")[0]
        around = f"ls {app}"
        if around in _commands(history) or not app.isalpha():
            return self._finish(_LOST)
        return self._step(_LOOK_ROUND, around)

    @property
    def _haste(self) -> float:
        return (1 - self._rates.verify_rate) * self._rates.haste

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _step(self, thoughts: Sequence[str], command: str, choice: Choice | None = None) -> ReferenceStep:
        found = choice.found if choice else {}
        return ReferenceStep(thought=self._rng.choice(thoughts).format(**found), command=command)

    def _finish(self, thoughts: Sequence[str]) -> FinalAnswer:
        return FinalAnswer(thought=self._rng.choice(thoughts), answer=ANSWER)


def reference_steps(plan: Blueprint) -> tuple[ReferenceStep, ...]:
    """What the careful demonstrator does when it reads what the faults are known to show."""
    demonstrator = Demonstrator(random.Random(0))
    history: list[Seen] = []
    steps: list[ReferenceStep] = []
    for observation in (*(shown for fault in plan.faults for shown in fault.shown), "ok"):
        move = demonstrator.next_move(history)
        if isinstance(move, FinalAnswer):
            raise ValueError(
                f"the careful demonstrator ended after {len(steps)} turns with {observation!r} still to read"
            )
        steps.append(move)
        history.append(Seen(move.command, observation))
    return tuple(steps)


def _last_check(history: Sequence[Seen]) -> str:
    return next((seen.observation.strip() for seen in reversed(history) if seen.command == CHECK), "")


def _commands(history: Sequence[Seen]) -> tuple[str, ...]:
    return tuple(seen.command for seen in history)


def _had_no_effect(history: Sequence[Seen]) -> bool:
    """Whether the last check says what the one before it said, though something was mended in between."""
    checks = [i for i, seen in enumerate(history) if seen.command == CHECK]
    if len(checks) < 2 or act_kind(history[-2].command) != "mend":
        return False
    return history[checks[-2]].observation == history[-1].observation
