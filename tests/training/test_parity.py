"""Parity between an engine's log-probabilities and the trainer's."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infra.engines.local import LocalEngine
from training.config import TrainConfig
from training.parity import ParityError, parity_report
from training.samples import Sample
from training.trainer import Trainer

Make = Callable[..., list[Sample]]


def test_equal_values_pass_and_correlate_fully() -> None:
    report = parity_report([[5, 6]], [[-1.0, -2.0]], [[-1.0, -2.0]]).require(0.0)
    assert (report.num_tokens, report.gap_max, report.probability_correlation) == (2, 0.0, 1.0)


def test_a_gap_beyond_the_threshold_is_refused_with_the_worst_token_first() -> None:
    report = parity_report([[5, 6], [7]], [[-1.0, -2.0], [-3.0]], [[-1.001, -2.5], [-3.1]])
    assert [(t.sequence, t.position, t.token_id) for t in report.worst] == [(0, 1, 6), (1, 0, 7), (0, 0, 5)]
    assert report.gap_mean == pytest.approx(0.601 / 3)
    with pytest.raises(ParityError, match=r"up to 0\.5 nats over 3 tokens(.|\n)*token 6: engine -2\.0") as refused:
        report.require(0.05)
    assert "raise training.max_engine_gap" in str(refused.value)


def test_a_nan_is_never_parity() -> None:
    with pytest.raises(ParityError):
        parity_report([[5, 6]], [[float("nan"), -2.0]], [[-1.0, -2.0]]).require(10.0)


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ParityError, match="token counts differ"):
        parity_report([[5, 6]], [[-1.0]], [[-1.0, -2.0]])


async def engine_scores(folder: Path, samples: list[Sample]) -> list[list[float]]:
    """The engine's log-probability of each trained token, at temperature 1."""
    engine = LocalEngine(folder)
    try:
        scored = [await engine.score(s.token_ids.tolist()) for s in samples]
    finally:
        await engine.aclose()
    return [[x[t - 1] for t in np.flatnonzero(s.loss_mask)] for s, x in zip(samples, scored, strict=True)]


def test_the_local_engine_and_the_trainer_agree_to_a_ten_thousandth(tiny_llama: Path, make_samples: Make) -> None:
    samples = [dataclasses.replace(s, temperature=1.0) for s in make_samples(4)]
    trainer_logprobs = Trainer(tiny_llama, TrainConfig()).logprobs(samples)
    report = parity_report(
        [s.token_ids[s.loss_mask].tolist() for s in samples],
        asyncio.run(engine_scores(tiny_llama, samples)),
        [values[s.loss_mask].tolist() for s, values in zip(samples, trainer_logprobs, strict=True)],
    )
    assert report.require(1e-4).num_tokens == sum(s.num_loss_tokens for s in samples)
