"""The parts of the local engine by themselves: attention, packing, sampling, slots and the head."""

from __future__ import annotations

import math

import numpy as np
import psutil
import pytest
import torch

from infra.engines.attention import attend_rows, store_rows
from infra.engines.heads import scaled_logits, token_logprobs
from infra.engines.model import PackedModel
from infra.engines.packed import KVCache, Piece
from infra.engines.sampling import SamplingRows, call_key, draw, truncate, uniforms
from infra.engines.slots import SlotTable, common_prefix


def cached(slots, kv_heads, dim, positions, seed=0):
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((slots, kv_heads, dim, positions)).astype(np.float32)
    values = rng.standard_normal((slots, kv_heads, positions, dim)).astype(np.float32)
    return keys, values


@pytest.mark.parametrize(("kv_heads", "group", "dim"), [(2, 1, 8), (1, 2, 16), (2, 3, 32), (1, 4, 80), (2, 5, 64)])
def test_attention_is_softmax_attention_over_the_positions_so_far(kv_heads, group, dim):
    keys, values = cached(3, kv_heads, dim, 100)
    query = np.random.default_rng(1).standard_normal((5, kv_heads, group, dim)).astype(np.float32)
    slots, positions = np.array([2, 0, 1, 1, 2]), np.array([0, 99, 16, 63, 31])
    output = np.full_like(query, np.nan)
    attend_rows(query, slots, positions, keys, values, np.float32(dim**-0.5), output)
    for row in range(5):
        seen = slice(0, positions[row] + 1)
        k = torch.from_numpy(keys[slots[row], :, :, seen]).transpose(1, 2)
        v = torch.from_numpy(values[slots[row], :, seen])
        expected = torch.nn.functional.scaled_dot_product_attention(torch.from_numpy(query[row]), k, v)
        np.testing.assert_allclose(output[row], expected.numpy(), atol=3e-6)


def test_heads_computed_in_pairs_give_the_bits_of_heads_computed_alone():
    keys, values = cached(1, 1, 32, 300)
    query = np.random.default_rng(2).standard_normal((1, 1, 5, 32)).astype(np.float32)
    for position in (0, 3, 15, 16, 77, 299):
        where = np.array([0]), np.array([position])
        together, alone = np.empty_like(query), np.empty_like(query)
        attend_rows(query, *where, keys, values, np.float32(0.2), together)
        for member in range(5):
            one = slice(member, member + 1)
            attend_rows(query[:, :, one], *where, keys, values, np.float32(0.2), alone[:, :, one])
        assert np.array_equal(together, alone)


def test_a_cache_costs_what_is_written_to_it_and_not_what_it_could_hold():
    token = torch.ones(1, 4, 64)
    before = psutil.Process().memory_info().rss
    keys, values = KVCache(64, 32768).layer(0, token, token)  # 2.2 GB each
    keys[7, :, :, 0] = values[7, :, 0] = 1.0
    assert (keys[7, 0, 0, :2].tolist(), values[63, 0, 5].sum().item()) == ([1.0, 0.0], 0.0)
    assert psutil.Process().memory_info().rss - before < 16 * 2**20


def test_extreme_scores_neither_overflow_nor_vanish():
    keys, values = np.zeros((1, 1, 8, 3), np.float32), np.zeros((1, 1, 3, 8), np.float32)
    keys[0, 0, 0] = [1e4, -1e4, 1e4]
    values[0, 0, :, 0] = [1.0, 5.0, 3.0]
    query, output = np.zeros((1, 1, 1, 8), np.float32), np.empty((1, 1, 1, 8), np.float32)
    query[..., 0] = 1.0
    attend_rows(query, np.array([0]), np.array([2]), keys, values, np.float32(1.0), output)
    assert output[0, 0, 0, 0] == pytest.approx(2.0)


def test_stored_rows_stand_where_they_are_looked_for():
    keys, values = np.zeros((2, 1, 8, 4), np.float32), np.zeros((2, 1, 4, 8), np.float32)
    key, value = np.arange(16, dtype=np.float32).reshape(2, 1, 8), -np.arange(16, dtype=np.float32).reshape(2, 1, 8)
    store_rows(key, value, np.array([1, 0]), np.array([3, 2]), keys, values)
    assert keys[1, 0, :, 3].tolist() == key[0, 0].tolist()
    assert values[0, 0, 2].tolist() == value[1, 0].tolist()
    assert np.count_nonzero(keys) + np.count_nonzero(values) == 30


def test_a_hidden_state_has_the_same_bits_however_its_prompt_was_cut(tiny_folder):
    model = PackedModel(tiny_folder, max_rows=160)
    ids = np.random.default_rng(3).integers(0, 320, 150).tolist()

    def read(sizes, slot, others):
        cache, parts, start = KVCache(4, 256), [], 0
        with torch.inference_mode():
            for size in sizes:
                piece = Piece(slot, start, ids[start : start + size])
                hidden = model.hidden([*others, piece], cache)
                parts.append(hidden[-size:])
                start += size
        return torch.cat(parts)

    whole = read([150], 0, [])
    neighbour = [Piece(3, 0, [9, 8, 7])]
    assert torch.equal(read([1] * 150, 1, []), whole)
    assert torch.equal(read([7] * 21 + [3], 2, neighbour), whole)
    assert torch.equal(read([100, 2, 48], 0, neighbour), whole)


def test_uniforms_are_uniform_and_differ_by_key_and_counter():
    keys = np.array([call_key(0, f"rollout-{i}", 3) for i in range(500)], dtype=np.uint64)
    drawn = np.concatenate([uniforms(keys, np.full(500, t, dtype=np.uint64)) for t in range(20)])
    assert len(np.unique(drawn)) == 10_000
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.01)
    assert np.histogram(drawn, bins=10, range=(0, 1))[0].min() > 900


def test_a_call_key_tells_its_parts_apart():
    keys = {call_key(1, "1", 1), call_key(11, "", 1), call_key(1, "", 11), call_key(0, "1", 1), call_key(1, "1", 0)}
    assert len(keys) == 5


def rows_of(uniform, *, greedy=False, truncated=(), top_k=(), top_p=()):
    count = len(uniform)
    return SamplingRows(
        uniform=torch.tensor(uniform, dtype=torch.float64),
        temperature=torch.ones(count),
        greedy=torch.full((count,), greedy),
        truncated=torch.tensor(truncated, dtype=torch.int64),
        top_k=torch.tensor(top_k, dtype=torch.int64),
        top_p=torch.tensor(top_p),
    )


def test_a_uniform_picks_the_token_whose_share_of_the_line_it_falls_in():
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(5, 3)
    ids, logprobs = draw(logits, rows_of([0.0, 0.19, 0.21, 0.51, 1 - 2**-53]))
    assert ids.tolist() == [0, 0, 1, 2, 2]
    assert logprobs.tolist() == pytest.approx([math.log(p) for p in (0.2, 0.2, 0.3, 0.5, 0.5)], abs=1e-6)


def test_no_uniform_picks_a_token_that_was_truncated_away():
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(2, 3)
    ids, logprobs = draw(logits, rows_of([0.999999, 1 - 2**-53], truncated=[0, 1], top_k=[2, 2], top_p=[1.0, 1.0]))
    assert ids.tolist() == [1, 1]
    assert logprobs.tolist() == pytest.approx([math.log(0.375)] * 2, abs=1e-6)


def test_top_p_keeps_the_token_that_crosses_the_mass_and_always_one():
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for top_p, kept in ((0.4, [0]), (0.6, [0, 1]), (0.81, [0, 1, 2]), (1e-9, [0])):
        left = truncate(logits, torch.tensor([3]), torch.tensor([top_p]))
        assert torch.isfinite(left[0]).nonzero().squeeze(-1).tolist() == kept


def test_the_head_is_float32_log_softmax_at_the_temperature():
    hidden, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.0], [0.0, 1.0], [1.0, 1.0]])
    logits = torch.tensor([[0.25, 1.0, 1.5]])  # (0.5, 2, 3) / 2
    assert torch.equal(scaled_logits(hidden, weight, 2.0), logits)
    assert token_logprobs(hidden, weight, torch.tensor([2]), 2.0).item() == pytest.approx(-0.63818, abs=1e-5)
    bfloat = token_logprobs(hidden.bfloat16(), weight.bfloat16(), torch.tensor([2]), torch.tensor([2.0]))
    assert bfloat.dtype == torch.float32


def test_a_temperature_of_zero_is_refused_by_the_head():
    with pytest.raises(ValueError, match=r"temperature is 0\.0; want a positive number"):
        scaled_logits(torch.ones(1, 2), torch.ones(3, 2), 0.0)


def ids_of(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_a_session_keeps_its_slot_and_its_common_prefix():
    table = SlotTable(KVCache(2, 16))
    slot = table.acquire("a", ids_of(1, 2, 3, 4), 3)
    slot.append([1, 2, 3, 4])
    table.release(slot)
    again = table.acquire("a", ids_of(1, 2, 9, 9, 9), 4)
    assert again is slot
    assert again.length == 2


def test_the_least_recently_used_idle_slot_goes_first_and_busy_ones_never():
    table = SlotTable(KVCache(3, 16))
    slots = {name: table.acquire(name, ids_of(1, 2), 1) for name in "abc"}
    assert table.acquire("d", ids_of(1, 2), 1) is None
    for name in "bac":
        table.release(slots[name])
    assert table.acquire("d", ids_of(1, 2), 1) is slots["b"]
    table.close_session("c")
    assert table.acquire("e", ids_of(1, 2), 1) is slots["c"]


def test_a_prefix_is_borrowed_from_whoever_holds_the_longest():
    table = SlotTable(KVCache(3, 16))
    for name, held in (("a", [1, 2, 3, 4]), ("b", [1, 2, 3, 4, 5, 6])):
        table.acquire(name, ids_of(*held), 0).append(held)
    slot = table.acquire("c", ids_of(1, 2, 3, 4, 5, 9, 9), 6)
    table.borrow_prefix(slot, ids_of(1, 2, 3, 4, 5, 9, 9), 6)
    assert slot.length == 5
    assert slot.common_prefix(ids_of(1, 2, 3, 4, 5, 6)) == 5


def test_a_common_prefix_ends_at_the_first_difference_or_with_the_shorter():
    assert common_prefix(ids_of(1, 2, 3), ids_of(1, 2, 4)) == 2
    assert common_prefix(ids_of(1, 2), ids_of(1, 2, 3)) == 2
    assert common_prefix(ids_of(), ids_of(1)) == 0
