"""What was kept of an iteration's rollouts for training: chains, why they forked, and the tokens in none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from environments.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCount:
    """The chains of one cause ('root', or why they forked), and the sampled tokens in them."""

    cause: str
    chains: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Counts over rollouts. A rollout whose calls all extend one another has one chain, of cause 'root'.

    `untrained_tokens` were sampled and are in no chain: of calls that were cancelled or broke, or whose answer never
    arrived whole.
    """

    chains: tuple[ChainCount, ...]
    untrained_tokens: int

    @property
    def num_chains(self) -> int:
        """Chains of every cause."""
        return sum(c.chains for c in self.chains)

    @property
    def forks(self) -> tuple[tuple[str, int], ...]:
        """(cause, chains) of those that are no root's."""
        return tuple((c.cause, c.chains) for c in self.chains if c.cause != "root")

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a tracker."""
        return {
            "recording/chains": float(self.num_chains),
            "recording/forks": float(sum(count for _, count in self.forks)),
            **{f"recording/forks/{cause}": float(count) for cause, count in self.forks},
            "recording/tokens_in_chains": float(sum(c.tokens for c in self.chains)),
            "recording/untrained_tokens": float(self.untrained_tokens),
        }


def recorded_of(trajectories: Iterable[Trajectory]) -> Recorded:
    """Count; the most frequent cause first. Pure."""
    whole = list(trajectories)
    chains: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for chain in (c for t in whole for c in t.chains):
        chains[chain.fork_cause] += 1
        tokens[chain.fork_cause] += chain.num_trainable
    return Recorded(
        chains=tuple(ChainCount(cause=cause, chains=n, tokens=tokens[cause]) for cause, n in chains.most_common()),
        untrained_tokens=sum(t.usage.completion_tokens - t.num_trainable for t in whole),
    )
