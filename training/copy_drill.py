"""Drill in copying numbers: single turns of demonstrations, with every number drawn anew each time they are seen.

A demonstration holds few digits that must be copied, so a small model learns that late. Turns that do copy one, cut out
and renumbered, hold twenty times as many a token, and no two batches hold the same ones.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from environments.types import Trajectory
from training.samples import Sample, SampleError

_NUMBER = re.compile(r"\d{2,}")


@dataclass(frozen=True, slots=True)
class CopyingTurn:
    """What was read and then said, as text; at least one number of two digits or more stands in both."""

    read: str
    said: str


def copying_turns(trajectories: Iterable[Trajectory], tokenizer: Any) -> tuple[CopyingTurn, ...]:
    """The turns whose action repeats a number of the observation right before it."""
    turns: list[CopyingTurn] = []
    for chain in (c for t in trajectories for c in t.chains):
        segments = [s for s in chain.segments if s.ids]
        for before, after in pairwise(segments):
            if after.trainable and not before.trainable:
                turn = CopyingTurn(tokenizer.decode(list(before.ids)), tokenizer.decode(list(after.ids)))
                if set(_NUMBER.findall(turn.read)) & set(_NUMBER.findall(turn.said)):
                    turns.append(turn)
    return tuple(turns)


def drill_samples(turns: Sequence[CopyingTurn], tokenizer: Any, count: int, rng: random.Random) -> tuple[Sample, ...]:
    """`count` turns drawn from `turns`, renumbered, as samples whose loss lies on what is said.

    Raises SampleError when `turns` is empty and some are wanted.
    """
    if count and not turns:
        raise SampleError("no demonstration copies a number of two digits or more; set drill to 0")
    return tuple(_sample(_renumbered(rng.choice(turns), rng), tokenizer, f"drill-{i}") for i in range(count))


def _renumbered(turn: CopyingTurn, rng: random.Random) -> CopyingTurn:
    """Each number that is read becomes another of as many digits, wherever it stands in the turn."""
    drawn = {n: _other(n, rng) for n in dict.fromkeys(_NUMBER.findall(turn.read))}

    def redraw(text: str) -> str:
        return _NUMBER.sub(lambda found: drawn.get(found[0], found[0]), text)

    return CopyingTurn(redraw(turn.read), redraw(turn.said))


def _other(number: str, rng: random.Random) -> str:
    return "".join([rng.choice("123456789"), *(rng.choice("0123456789") for _ in number[1:])])


def _sample(turn: CopyingTurn, tokenizer: Any, name: str) -> Sample:
    read, said = (tokenizer.encode(text, add_special_tokens=False) for text in (turn.read, turn.said))
    mask = np.array([False] * len(read) + [True] * len(said))
    return Sample(
        token_ids=np.array(read + said, dtype=np.int32),
        loss_mask=mask,
        behaviour_logprobs=np.zeros(len(mask), dtype=np.float32),
        advantages=mask.astype(np.float32),
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        weight=1.0,
        temperature=1.0,
        chain_id=name,
        rollout_id=name,
        group_id=name,
    )
