"""Packed rows and their attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from training.attention import AttentionError, packed_attention
from training.packing import PackingError, pack, plan_rows
from training.samples import Sample

Make = Callable[..., list[Sample]]
CPU = torch.device("cpu")


def sample(length: int, rollout: int) -> Sample:
    mask = np.arange(length) > 0
    zeros = np.zeros(length, dtype=np.float32)
    return Sample(
        token_ids=np.arange(length, dtype=np.int32),
        loss_mask=mask,
        behaviour_logprobs=zeros,
        advantages=zeros,
        policy_versions=np.zeros(length, dtype=np.int32),
        weight=1.0,
        temperature=1.0,
        chain_id=f"{rollout}.{length}",
        rollout_id=str(rollout),
        group_id="g",
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # slow only where the machine is crowded
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 100))
def test_every_sample_is_in_one_row_and_rows_keep_the_budget(shapes: list[tuple[int, int]], budget: int) -> None:
    samples = [sample(length, rollout) for length, rollout in shapes]
    for whole in (False, True):
        rows = plan_rows(samples, budget, whole_rollouts=whole)
        assert sorted(i for row in rows for i in row) == list(range(len(samples)))
        for row in rows:
            units = {samples[i].rollout_id if whole else str(i) for i in row}
            assert sum(len(samples[i].token_ids) for i in row) <= budget or len(units) == 1
        if whole:
            for rollout in {s.rollout_id for s in samples}:
                assert sum(any(samples[i].rollout_id == rollout for i in row) for row in rows) == 1


def test_a_row_has_no_padding_and_each_target_follows_its_predictor(make_samples: Make) -> None:
    samples = make_samples(3)
    row = pack(samples, CPU)
    assert row.token_ids_1T.shape == (1, sum(len(s.token_ids) for s in samples))
    assert row.position_ids_1T[0].tolist() == [p for s in samples for p in range(len(s.token_ids))]
    assert torch.equal(row.token_ids_1T[0, row.predictor_N + 1], row.targets_N)
    assert row.targets_N.tolist() == [t for s in samples for t in s.token_ids[s.loss_mask].tolist()]
    assert row.sample_index_N.tolist() == [i for i, s in enumerate(samples) for _ in range(s.num_loss_tokens)]


def test_no_samples_and_half_given_proximal_values_are_refused(make_samples: Make) -> None:
    import dataclasses

    with pytest.raises(PackingError, match="no samples"):
        pack([], CPU)
    one, two = make_samples(2)
    half = dataclasses.replace(one, proximal_logprobs=one.behaviour_logprobs)
    with pytest.raises(PackingError, match="1 of 2"):
        pack([half, two], CPU)


def test_packed_attention_is_causal_attention_of_each_segment_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, 15, 8, generator=generator)
    key, value = torch.randn(2, 1, 2, 15, 8, generator=generator)
    lengths = (3, 1, 11)
    packed, _ = packed_attention(nn.Module(), query, key, value, None, segment_lengths=lengths, scaling=0.3)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        q, k, v = query[:, :, part], key[:, :, part], value[:, :, part]
        scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
        mask = torch.ones(length, length).tril() == 0
        expected = scores.masked_fill(mask, -torch.inf).softmax(-1) @ v.repeat_interleave(2, 1)
        assert_close(packed[:, part], expected.transpose(1, 2), atol=1e-5, rtol=1e-5)
        start += length


def test_attention_that_is_not_computed_is_refused() -> None:
    x = torch.zeros(1, 1, 4, 8)
    for extra, says in (({"sliding_window": 3}, "sliding window 3"), ({"softcap": 5.0}, "soft caps")):
        with pytest.raises(AttentionError, match=says):
            packed_attention(nn.Module(), x, x, x, None, segment_lengths=(4,), **extra)
    with pytest.raises(AttentionError, match=r"dropout is 0\.1"):
        packed_attention(nn.Module(), x, x, x, None, segment_lengths=(4,), dropout=0.1)
