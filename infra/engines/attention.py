"""Causal attention of packed rows over a key-value cache, compiled for the CPU.

Each (row, head) is computed alone: scores key by key, softmax, weighted sum of values, every sum in order of its
index. The result is a pure function of the query and of the cached keys and values up to its position. A library's
matrix product is not: it splits long sums by the shape of the whole batch.

Keys are cached as [slot, kv_head, dim, position], so that scores of neighbouring positions fill vector lanes;
values as [slot, kv_head, position, dim], for the same reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

DIM_STEP = 8  # dims that one pass over the keys takes; head sizes are multiples of it

# exp(x) = 2^z * P(x - z ln 2), with the minimax polynomial of the Cephes library (Moshier): under 2 ulp for x <= 0.
_LOG2_E = np.float32(1.44269504088896341)
_LN_2_HIGH = np.float32(0.693359375)
_LN_2_LOW = np.float32(-2.12194440e-4)
_P0 = np.float32(1.9875691500e-4)
_P1 = np.float32(1.3981999507e-3)
_P2 = np.float32(8.3334519073e-3)
_P3 = np.float32(4.1665795894e-2)
_P4 = np.float32(1.6666665459e-1)
_P5 = np.float32(5.0000001201e-1)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_LEAST_EXPONENT = np.float32(-87.0)  # exp of less is below the smallest normal number
_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)

# `contract` allows fused multiply-add; nothing here allows sums to be reordered.
_compiled = njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")


@_compiled
def attend_rows(
    query: Floats,
    key: Floats,
    value: Floats,
    slots: Any,
    positions: Any,
    keys: Floats,
    values: Floats,
    scaling: np.float32,
    output: Floats,
) -> None:
    """Store the M rows' `key` and `value` [M, kv_heads, D] in the cache, then attend.

    Row m is position `positions[m]` of slot `slots[m]`; `query` and `output` are [M, kv_heads, G, D], `keys`
    [slots, kv_heads, D, T], `values` [slots, kv_heads, T, D]. `output` is overwritten.
    """
    for row in range(query.shape[0]):
        slot, position = slots[row], positions[row]
        for head in range(key.shape[1]):
            for d in range(key.shape[2]):
                keys[slot, head, d, position] = key[row, head, d]
            for d in range(value.shape[2]):
                values[slot, head, position, d] = value[row, head, d]
    weights = np.empty(keys.shape[3], np.float32)
    exponents = np.empty(keys.shape[3], np.int32)
    powers = exponents.view(np.float32)
    for row in range(query.shape[0]):
        slot, count = slots[row], positions[row] + 1
        for head in range(query.shape[1]):
            for member in range(query.shape[2]):
                _scores(query[row, head, member], keys[slot, head], count, weights)
                _exponentials(weights, count, scaling, exponents, powers)
                _weighted_mean(weights, values[slot, head], count, output[row, head, member])


@_compiled
def _scores(query: Floats, keys: Floats, count: int, scores: Floats) -> None:
    """`scores[:count]` = `query[D] @ keys[D, :count]`, summed in order of d."""
    for t in range(count):
        scores[t] = _ZERO
    for d in range(0, query.shape[0], DIM_STEP):
        q0, q1, q2, q3 = query[d], query[d + 1], query[d + 2], query[d + 3]
        q4, q5, q6, q7 = query[d + 4], query[d + 5], query[d + 6], query[d + 7]
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        k4, k5, k6, k7 = keys[d + 4], keys[d + 5], keys[d + 6], keys[d + 7]
        for t in range(count):
            near = scores[t] + q0 * k0[t] + q1 * k1[t] + q2 * k2[t] + q3 * k3[t]
            scores[t] = near + q4 * k4[t] + q5 * k5[t] + q6 * k6[t] + q7 * k7[t]


@_compiled
def _exponentials(scores: Floats, count: int, scaling: np.float32, exponents: Ints, powers: Floats) -> None:
    """`scores[:count]` becomes exp(scaling * (scores - max)). `powers` shares the memory of `exponents`."""
    greatest = scores[0]
    for t in range(count):
        greatest = scores[t] if scores[t] > greatest else greatest
    for t in range(count):
        x = (scores[t] - greatest) * scaling
        x = _LEAST_EXPONENT if x < _LEAST_EXPONENT else x  # a NaN stays a NaN
        z = np.floor(x * _LOG2_E + _HALF)
        x = x - z * _LN_2_HIGH
        x = x - z * _LN_2_LOW
        polynomial = ((((_P0 * x + _P1) * x + _P2) * x + _P3) * x + _P4) * x + _P5
        scores[t] = polynomial * (x * x) + x + _ONE
        exponents[t] = (np.int32(z) + _BIAS) << _MANTISSA_BITS
    for t in range(count):
        scores[t] = scores[t] * powers[t]


@_compiled
def _weighted_mean(weights: Floats, values: Floats, count: int, output: Floats) -> None:
    """`output[D]` = `weights[:count] @ values[:count, D] / sum(weights)`, summed in order of t."""
    for d in range(output.shape[0]):
        output[d] = _ZERO
    total = _ZERO
    fours = count // 4 * 4
    for t in range(0, fours, 4):
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        total = total + w0 + w1 + w2 + w3
        for d in range(output.shape[0]):
            output[d] = output[d] + w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
    for t in range(fours, count):
        w0, v0 = weights[t], values[t]
        total = total + w0
        for d in range(output.shape[0]):
            output[d] = output[d] + w0 * v0[d]
    inverse = _ONE / total
    for d in range(output.shape[0]):
        output[d] = output[d] * inverse
