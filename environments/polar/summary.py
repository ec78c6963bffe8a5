"""What was captured, delivered and kept for training, in numbers that must add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from environments.polar.base import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Counts over recordings. Tokens are sampled tokens; `in_forks` are those of chains that are no root's.

    `answers` says what complete calls were read as: calls of tools, text, or neither that can be acted on.
    `untrained` are on record but in no chain (cancelled or broken calls); `trained_twice` stand in two places and
    must be 0, as must `broken`, the lost calls and gaps of the log.
    """

    calls: int
    call_states: Mapping[str, int]
    answers: Mapping[str, int]
    sampled: int
    delivered: int
    trainable: int
    untrained: int
    trained_twice: int
    rendered: int
    chains: int
    chain_causes: Mapping[str, int]
    in_forks: Mapping[str, int]
    turns: int
    broken: int


def summarise(recordings: Iterable[Recording]) -> Summary:
    """Count. Pure."""
    whole = list(recordings)
    calls = [c for r in whole for c in r.calls]
    chains = [c for r in whole for c in r.chains]
    places = Counter(s.call_id for c in chains for s in c.segments if s.trainable)
    forks: Counter[str] = Counter()
    for chain in chains:
        if chain.fork_cause != "root":
            forks[chain.fork_cause] += chain.num_trainable
    sampled = sum(len(c.completion_ids) for c in calls)
    trainable = sum(c.num_trainable for c in chains)
    twice = sum(len(c.completion_ids) for c in calls if places[c.call_id] > 1)
    return Summary(
        calls=len(calls),
        call_states=dict(Counter(c.state for c in calls)),
        answers=dict(Counter(outcome for r in whole for outcome in r.outcomes.values())),
        sampled=sampled,
        delivered=sum(c.delivered_count for c in calls),
        trainable=trainable,
        untrained=sum(len(c.completion_ids) for c in calls if not places[c.call_id]),
        trained_twice=twice,
        rendered=sum(len(c.prompt_tail_ids) for c in calls),
        chains=len(chains),
        chain_causes=dict(Counter(c.fork_cause for c in chains)),
        in_forks=dict(forks),
        turns=sum(len(r.turns) for r in whole),
        broken=sum(len(r.broken) for r in whole),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def describe(summary: Summary) -> str:
    """The summary as lines for a terminal."""
    return "\n".join(
        (
            f"calls      {summary.calls} ({_counts(summary.call_states)})",
            f"answers    {_counts(summary.answers)}",
            f"tokens     sampled {summary.sampled}, delivered {summary.delivered}, trainable {summary.trainable}, "
            f"untrained {summary.untrained}, trained twice {summary.trained_twice}, rendered {summary.rendered}",
            f"chains     {summary.chains} ({_counts(summary.chain_causes)})",
            f"in forks   {_counts(summary.in_forks)}",
            f"turns      {summary.turns}",
            f"lost calls {summary.broken}",
        )
    )
