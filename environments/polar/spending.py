"""What a rollout has used of its budget, and what the next call may still have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from environments.polar.base import SessionBudget
from environments.polar.calls import LiveCall
from environments.polar.errors import BudgetExhausted, Crowded
from environments.polar.lineage import Line

# A side call (a title, which needs a line of text) is granted at most this part of the tokens left, so that it
# does not hold what the work beside it needs.
SIDE_SHARE = 8


@dataclass(slots=True, kw_only=True)
class Spending:
    """`tokens` were sampled by calls that have ended; `hit` once a call was refused or cut for want of budget.

    Time runs from the first call (`begun_at`, s), not from the opening: what comes before is no act of the agent's.
    """

    budget: SessionBudget
    tokens: int = 0
    begun_at: float | None = None
    hit: bool = False

    def begin(self, now: float) -> None:
        """Start the clock, at the first call."""
        if self.begun_at is None:
            self.begun_at = now

    def time_left_s(self, now: float) -> float:
        """How long a call that starts now may run."""
        return self.budget.wall_time_s - self._used_s(now)

    def _used_s(self, now: float) -> float:
        return now - self.begun_at if self.begun_at is not None else 0.0

    def grant(self, line: Line, lines: Sequence[Line], running: Collection[LiveCall], now: float) -> int:
        """How many tokens the next call of `line` may sample, at least 1.

        What running calls were granted is theirs until they end or are aborted, so that calls side by side keep
        within the budget too. Side calls cost no calls of the work; there may be as many again of them. Raises
        BudgetExhausted, and Crowded where tokens are left but running calls hold them.
        """
        side = line.role == "side"
        left = self.budget.max_tokens - self.tokens
        if left < 1 or _calls(lines, side=side) >= self.budget.max_calls or self.time_left_s(now) <= 0:
            raise self._exhausted(lines, now)
        free = left - sum(len(call.ids) if call.aborted else call.sampling.max_tokens for call in running)
        if free < 1:
            raise Crowded(f"the {left} tokens left are held by {len(running)} running calls; try again in a moment")
        return max(1, free // SIDE_SHARE) if side else free

    def _exhausted(self, lines: Sequence[Line], now: float) -> BudgetExhausted:
        self.hit = True
        return BudgetExhausted(
            f"budget_exhausted: this rollout may make {self.budget.max_calls} calls, as many side calls, sample "
            f"{self.budget.max_tokens} tokens and take {self.budget.wall_time_s:g} s; it has made "
            f"{_calls(lines, side=False)} calls and {_calls(lines, side=True)} side calls, sampled "
            f"{self.tokens} tokens and taken {self._used_s(now):.0f} s"
        )


def _calls(lines: Sequence[Line], *, side: bool) -> int:
    """Calls that were made beside the work, or of the work itself."""
    return sum(line.calls for line in lines if (line.role == "side") == side)
