"""Calls to chains: each sampled token once, in the very context it was sampled in. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from environments.types import CallRecord, Chain, ForkCause, Segment


def _arrived(call: CallRecord) -> bool:
    return call.delivered_count == len(call.completion_ids)


class _Tree:
    """The answers that arrived, as a forest: parent -> children in order of start."""

    def __init__(self, calls: Sequence[CallRecord], related: Mapping[str, str | None]) -> None:
        went_on_from = {c.parent_call_id for c in calls}
        complete = (c for c in calls if c.state == "complete")
        self.calls = {c.call_id: c for c in complete if _arrived(c) or c.call_id in went_on_from}
        self.causes = {c.call_id: c.cause for c in calls}
        self.related = related
        self.children: dict[str, list[str]] = {}
        for call in self.calls.values():
            if call.parent_call_id in self.calls:
                self.children.setdefault(str(call.parent_call_id), []).append(call.call_id)
        self.sizes: dict[str, int] = {}
        for call_id in reversed(self.calls):  # children start after their parents
            self.sizes[call_id] = 1 + sum(self.sizes[x] for x in self.children.get(call_id, ()))

    def heir(self, call_id: str) -> str | None:
        """The child that goes on with the chain: the one with most calls below it, the earliest of equals."""
        children = self.children.get(call_id, ())
        return max(children, key=lambda x: self.sizes[x], default=None)

    def starts_chain(self, call: CallRecord) -> bool:
        parent = call.parent_call_id
        return parent is None or parent not in self.calls or self.heir(parent) != call.call_id

    def context(self, call: CallRecord) -> tuple[int, ...]:
        """The ids before the call's own completion."""
        parts = [call.prompt_tail_ids]
        parent = self.calls.get(call.parent_call_id or "")
        while parent is not None:
            parts += [parent.completion_ids, parent.prompt_tail_ids]
            parent = self.calls.get(parent.parent_call_id or "")
        return tuple(token for part in reversed(parts) for token in part)

    def cause(self, call: CallRecord) -> ForkCause:
        """Why a chain starts at this call.

        A retry starts one for the reason of what it repeats. A continuation whose parent goes on elsewhere was
        sampled again there, or its history was rewritten.
        """
        cause, seen = call.cause, call.call_id
        while cause == "retry" and self.related.get(seen) in self.causes:
            seen = str(self.related[seen])
            cause = self.causes[seen]
        if cause != "continuation":
            return cause
        sampled_again = any(self._repeats(x, call) for x in self.children.get(call.parent_call_id or "", ()))
        return "resample" if sampled_again else "rewritten"

    def _repeats(self, sibling: str, call: CallRecord) -> bool:
        same = self.calls[sibling].prompt_tail_ids == call.prompt_tail_ids
        return same and self.causes[sibling] == "resample"


def _rendered(ids: tuple[int, ...], call: CallRecord) -> Segment:
    return Segment(ids=ids, logprobs=(), trainable=False, call_id=call.call_id, policy_version=-1)


def _sampled(call: CallRecord) -> list[Segment]:
    if not call.completion_ids:
        return []
    return [
        Segment(
            ids=call.completion_ids,
            logprobs=call.completion_logprobs,
            trainable=True,
            call_id=call.call_id,
            policy_version=call.policy_version,
        )
    ]


def _chain(first: CallRecord, tree: _Tree, chain_of: dict[str, str]) -> Chain:
    chain_id = f"{first.call_id}+"
    segments = [_rendered(tree.context(first), first), *_sampled(first)]
    chain_of[first.call_id] = chain_id
    heir = tree.heir(first.call_id)
    while heir is not None:
        call = tree.calls[heir]
        chain_of[heir] = chain_id
        segments += [_rendered(call.prompt_tail_ids, call), *_sampled(call)]
        heir = tree.heir(heir)
    origin = first.parent_call_id or tree.related.get(first.call_id)
    return Chain(
        chain_id=chain_id,
        rollout_id=first.rollout_id,
        agent_id=first.agent_id,
        role=first.role,
        parent_chain_id=chain_of.get(origin) if origin is not None else None,
        fork_cause=tree.cause(first),
        segments=tuple(segments),
    )


def build_chains(calls: Sequence[CallRecord], related: Mapping[str, str | None]) -> tuple[Chain, ...]:
    """Chains in order of their first call. `related[call_id]` is the call that a fork departs from.

    Calls that were cancelled or broke train nothing and stand in no chain, nor does an answer that was never delivered
    whole: nobody acted on it, so the outcome says nothing of it. Where a later request carries it in its history it did
    arrive, whatever became of the line, and it trains: it is part of the context that the rest was sampled in.
    """
    tree = _Tree(calls, related)
    chain_of: dict[str, str] = {}
    return tuple(_chain(c, tree, chain_of) for c in tree.calls.values() if tree.starts_chain(c))
