"""Continuous batching: which tokens of which calls go through the model in the next step, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from infra.engines.base import FinishReason, GenerateRequest, TokenDelta
from infra.engines.model import PackedModel
from infra.engines.packed import KVCache, Piece
from infra.engines.sampling import SamplingRows, call_key, chosen_logprobs, draw, uniforms
from infra.engines.slots import Ids, Slot, SlotTable, common_prefix

# A prefix shorter than this is read again rather than looked for in other slots.
WORTH_BORROWING = 64


@dataclass(eq=False)
class Call:
    """One request under way. `forced` ids, which follow the prompt, are scored instead of sampled.

    `limit` is the most tokens that it may answer.
    """

    request: GenerateRequest
    forced: tuple[int, ...] | None
    limit: int
    policy_version: int
    order: int = 0
    slot: Slot | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    delivered: int = 0
    aborted: bool = False
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.cut = self.forced is not None and len(self.forced) > self.limit
        self.forced = self.forced[: self.limit] if self.forced is not None else None
        self.prompt: Ids = np.array([*self.request.prompt_ids, *(self.forced or ())[:-1]], dtype=np.int64)
        # the position whose hidden state predicts the first answered token: it is always read, never from the cache
        self.first_scored = len(self.request.prompt_ids) - 1
        self.key = call_key(sampling.seed, self.request.rollout_id, self.request.call_index)
        self.temperature = sampling.temperature or 1.0
        self.stops = frozenset(sampling.stop_token_ids)

    @property
    def reading(self) -> bool:
        """Whether tokens of the prompt (or forced ones) are still to be read."""
        return self.slot is not None and self.slot.length < len(self.prompt)

    def take_delta(self) -> TokenDelta:
        """What was not delivered before."""
        first, self.delivered = self.delivered, len(self.ids)
        return TokenDelta(
            ids=tuple(self.ids[first:]),
            logprobs=tuple(self.logprobs[first:]),
            policy_version=self.policy_version,
            finish_reason=self.finish_reason,
        )

    def accept_forced(self, logprobs: Sequence[float]) -> None:
        """Add the next of the forced tokens, one for each log-probability."""
        forced = self.forced or ()
        self.ids += forced[len(self.ids) : len(self.ids) + len(logprobs)]
        self.logprobs += logprobs
        if len(self.ids) == len(forced):
            self.finish_reason = "length" if self.cut else "stop"

    def accept(self, token: int, logprob: float) -> None:
        """Add one sampled token and see whether it is the last."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in self.stops:
            self.finish_reason = "stop"
        elif len(self.ids) >= self.limit:
            self.finish_reason = "length"


class Scheduler:
    """Runs steps over the calls it was given. Belongs to one thread.

    A step holds one token of every call that is decoding and up to `chunk_tokens` of prompts being read, so a long
    prompt delays the others by no more than a chunk a step.
    """

    def __init__(self, model: PackedModel, cache: KVCache, *, chunk_tokens: int) -> None:
        self.model = model
        self._cache = cache
        self._chunk_tokens = chunk_tokens
        self.table = SlotTable(cache)
        self._waiting: list[Call] = []
        self._running: list[Call] = []
        self._order = 0

    def add(self, call: Call) -> None:
        """Queue a call; it runs once a slot is free."""
        self._order += 1
        call.order = self._order
        self._waiting.append(call)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._waiting and not self._running

    def swap_model(self, model: PackedModel) -> None:
        """Answer with other weights of the same shapes from now on. No call may be under way."""
        self.model.close()
        self.model = model
        self.table.clear()

    def calls(self) -> list[Call]:
        """All calls under way or waiting."""
        return [*self._running, *self._waiting]

    def step(self) -> list[Call]:
        """One forward pass; the calls that got tokens or ended in it."""
        self._admit()
        decoding, reading = self._decoding(), self._reading()
        if not decoding and not reading:
            return []
        pieces = [_decode_piece(call) for call in decoding] + [piece for _, piece in reading]
        hidden = self.model.hidden(pieces, self._cache)
        for call, piece in zip([*decoding, *(c for c, _ in reading)], pieces, strict=True):
            _slot(call).append(piece.ids)
        touched = self._score_forced(hidden, reading, len(decoding)) + self._sample(hidden, decoding, reading)
        for call in touched:
            if call.finish_reason is not None:
                self._forget(call)
        return touched

    def drop_aborted(self) -> list[Call]:
        """Free what aborted calls hold and return them."""
        aborted = [call for call in self.calls() if call.aborted]
        for call in aborted:
            call.finish_reason = "abort"
            self._forget(call)
        return aborted

    def _admit(self) -> None:
        while self._waiting:
            call = self._waiting[0]
            call.slot = self.table.acquire(call.request.session_id, call.prompt, call.first_scored)
            if call.slot is None:
                return
            self._running.append(self._waiting.pop(0))

    def _decoding(self) -> list[Call]:
        return [call for call in self._running if not call.reading]

    def _reading(self) -> list[tuple[Call, Piece]]:
        """Prompt chunks: the oldest call first with at most half the budget, then the nearest to its end."""
        calls = sorted((c for c in self._running if c.reading), key=lambda c: c.order)
        rest = sorted(calls[1:], key=lambda c: len(c.prompt) - _slot(c).length)
        budget, chosen = self._chunk_tokens, list[tuple[Call, Piece]]()
        for call in calls[:1] + rest:
            if budget == 0:
                break
            if not chosen or self._ready(call, [c for c, _ in chosen]):
                alone = len(calls) == 1
                share = budget if chosen or alone else -(-budget // 2)
                piece = self._read_piece(call, share)
                chosen.append((call, piece))
                budget -= len(piece.ids)
        return chosen

    def _ready(self, call: Call, others: Sequence[Call]) -> bool:
        """Whether the call gains nothing by waiting a step for a prefix that one of `others` is reading."""
        held = _slot(call).length
        if call.first_scored - held < WORTH_BORROWING:
            return True
        longest = max(min(common_prefix(o.prompt, call.prompt), call.first_scored) for o in others)
        return longest - held < WORTH_BORROWING

    def _read_piece(self, call: Call, budget: int) -> Piece:
        slot = _slot(call)
        if call.first_scored - slot.length >= WORTH_BORROWING:
            self.table.borrow_prefix(slot, call.prompt, call.first_scored)
        start = slot.length
        return Piece(slot.index, start, call.prompt[start : start + budget].tolist())

    def _score_forced(self, hidden: Tensor, reading: Sequence[tuple[Call, Piece]], row: int) -> list[Call]:
        touched = []
        for call, piece in reading:
            if call.forced is not None and piece.end > call.first_scored:
                first = max(call.first_scored - piece.start, 0)
                targets = call.forced[len(call.ids) : piece.end - call.first_scored]
                scored = hidden[row + first : row + len(piece.ids)]
                logits = self.model.logits(scored, torch.full((len(targets),), call.temperature))
                call.accept_forced(chosen_logprobs(logits, torch.tensor(targets)).tolist())
                touched.append(call)
            row += len(piece.ids)
        return touched

    def _sample(self, hidden: Tensor, decoding: Sequence[Call], reading: Sequence[tuple[Call, Piece]]) -> list[Call]:
        calls, rows, row = list(decoding), list(range(len(decoding))), len(decoding)
        for call, piece in reading:
            row += len(piece.ids)
            if call.forced is None and piece.end == len(call.prompt):
                calls.append(call)
                rows.append(row - 1)
        if calls:
            sampling = _sampling_rows(calls, self.model.vocab_size)
            logits = self.model.logits(hidden[rows], sampling.temperature)
            ids, logprobs = draw(logits, sampling)
            for call, token, logprob in zip(calls, ids.tolist(), logprobs.tolist(), strict=True):
                call.accept(token, logprob)
        return calls

    def _forget(self, call: Call) -> None:
        if call.slot is not None:
            self.table.release(call.slot)
            call.slot = None
            self._running.remove(call)
        else:
            self._waiting.remove(call)


def _slot(call: Call) -> Slot:
    if call.slot is None:
        raise RuntimeError(f"call {call.request.request_id} runs without a slot")
    return call.slot


def _decode_piece(call: Call) -> Piece:
    slot = _slot(call)
    return Piece(slot.index, slot.length, call.ids[-1:])


def _sampling_rows(calls: Sequence[Call], vocab_size: int) -> SamplingRows:
    fields = [call.request.sampling for call in calls]
    keys = np.array([call.key for call in calls], dtype=np.uint64)
    counters = np.array([len(call.ids) for call in calls], dtype=np.uint64)
    truncated = [row for row, s in enumerate(fields) if s.top_p < 1 or s.top_k > 0]
    top_k = [fields[row].top_k if fields[row].top_k > 0 else vocab_size for row in truncated]
    return SamplingRows(
        uniform=torch.from_numpy(uniforms(keys, counters)),
        temperature=torch.tensor([call.temperature for call in calls]),
        greedy=torch.tensor([s.temperature == 0 for s in fields]),
        truncated=torch.tensor(truncated, dtype=torch.int64),
        top_k=torch.tensor(top_k, dtype=torch.int64),
        top_p=torch.tensor([fields[row].top_p for row in truncated]),
    )
