"""Causal attention of packed rows over a key-value cache, compiled for the CPU.

Each (row, head) is computed by itself: scores key by key, softmax, weighted sum of values, every sum in order of its
index. The result is a pure function of the query and of the cached keys and values up to its position. A library's
matrix product is not: it splits long sums by the shape of the whole batch.

Two heads that share keys are computed side by side where there are two: half the loads, the same sums.

Keys are cached as [slot, kv_head, dim, position], so that scores of neighbouring positions fill vector lanes;
values as [slot, kv_head, position, dim], for the same reason.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

DIM_STEP = 4  # dims that one pass over the keys takes; head sizes are multiples of it

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
def store_rows(key: Floats, value: Floats, slots: Indices, positions: Indices, keys: Floats, values: Floats) -> None:
    """Put the M rows' `key` and `value` [M, kv_heads, D] into the cache at (`slots[m]`, `positions[m]`)."""
    for row in range(key.shape[0]):
        slot, position = slots[row], positions[row]
        for head in range(key.shape[1]):
            for d in range(key.shape[2]):
                keys[slot, head, d, position] = key[row, head, d]
            for d in range(value.shape[2]):
                values[slot, head, position, d] = value[row, head, d]


@_compiled
def attend_rows(
    query: Floats,
    slots: Indices,
    positions: Indices,
    keys: Floats,
    values: Floats,
    scaling: np.float32,
    output: Floats,
) -> None:
    """Overwrite `output`: row m attends to positions 0..`positions[m]` of slot `slots[m]`.

    `query` and `output` are [M, kv_heads, G, D], where G query heads share a key head; `keys` [slots, kv_heads, D,
    T], `values` [slots, kv_heads, T, D].
    """
    weights = np.empty((2, keys.shape[3]), np.float32)
    exponents = np.empty(keys.shape[3], np.int32)
    powers = exponents.view(np.float32)
    group = query.shape[2]
    for row in range(query.shape[0]):
        slot, count = slots[row], positions[row] + 1
        for head in range(query.shape[1]):
            shared_keys, shared_values = keys[slot, head], values[slot, head]
            q, out = query[row, head], output[row, head]
            for g in range(0, group - 1, 2):
                _scores_of_two(q[g], q[g + 1], shared_keys, count, weights[0], weights[1])
                _exponentials(weights[0], count, scaling, exponents, powers)
                _exponentials(weights[1], count, scaling, exponents, powers)
                _means_of_two(weights[0], weights[1], shared_values, count, out[g], out[g + 1])
            if group % 2:
                _scores(q[group - 1], shared_keys, count, weights[0])
                _exponentials(weights[0], count, scaling, exponents, powers)
                _mean(weights[0], shared_values, count, out[group - 1])


@_compiled
def _scores(q: Floats, keys: Floats, count: int, s: Floats) -> None:
    """`s[:count] = q[D] @ keys[D, :count]`, summed in order of d."""
    for t in range(count):
        s[t] = _ZERO
    for d in range(0, q.shape[0], DIM_STEP):
        q0, q1, q2, q3 = q[d], q[d + 1], q[d + 2], q[d + 3]
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for t in range(count):
            s[t] = s[t] + q0 * k0[t] + q1 * k1[t] + q2 * k2[t] + q3 * k3[t]


@_compiled
def _scores_of_two(q: Floats, p: Floats, keys: Floats, count: int, s: Floats, r: Floats) -> None:
    """`_scores` of `q` into `s` and of `p` into `r`."""
    for t in range(count):
        s[t] = _ZERO
        r[t] = _ZERO
    for d in range(0, q.shape[0], DIM_STEP):
        q0, q1, q2, q3 = q[d], q[d + 1], q[d + 2], q[d + 3]
        p0, p1, p2, p3 = p[d], p[d + 1], p[d + 2], p[d + 3]
        k0, k1, k2, k3 = keys[d], keys[d + 1], keys[d + 2], keys[d + 3]
        for t in range(count):
            s[t] = s[t] + q0 * k0[t] + q1 * k1[t] + q2 * k2[t] + q3 * k3[t]
            r[t] = r[t] + p0 * k0[t] + p1 * k1[t] + p2 * k2[t] + p3 * k3[t]


@_compiled
def _exponentials(s: Floats, count: int, scaling: np.float32, exponents: Ints, powers: Floats) -> None:
    """`s[:count]` becomes exp(scaling * (s - max)). `powers` is `exponents` read as floats."""
    greatest = s[0]
    for t in range(count):
        greatest = s[t] if s[t] > greatest else greatest
    for t in range(count):
        x = (s[t] - greatest) * scaling
        x = _LEAST_EXPONENT if x < _LEAST_EXPONENT else x  # a NaN stays a NaN
        z = np.floor(x * _LOG2_E + _HALF)
        x = x - z * _LN_2_HIGH
        x = x - z * _LN_2_LOW
        polynomial = ((((_P0 * x + _P1) * x + _P2) * x + _P3) * x + _P4) * x + _P5
        s[t] = polynomial * (x * x) + x + _ONE
        exponents[t] = (np.int32(z) + _BIAS) << _MANTISSA_BITS
    for t in range(count):
        s[t] = s[t] * powers[t]


@_compiled
def _mean(w: Floats, values: Floats, count: int, out: Floats) -> None:
    """`out[D] = w[:count] @ values[:count, D] / sum(w[:count])`, summed in order of t."""
    for d in range(out.shape[0]):
        out[d] = _ZERO
    total = _ZERO
    fours = count // 4 * 4
    for t in range(0, fours, 4):
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        w0, w1, w2, w3 = w[t], w[t + 1], w[t + 2], w[t + 3]
        total = total + w0 + w1 + w2 + w3
        for d in range(out.shape[0]):
            out[d] = out[d] + w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
    for t in range(fours, count):
        total = total + w[t]
        for d in range(out.shape[0]):
            out[d] = out[d] + w[t] * values[t, d]
    for d in range(out.shape[0]):
        out[d] = out[d] / total


@_compiled
def _means_of_two(w: Floats, u: Floats, values: Floats, count: int, out: Floats, other: Floats) -> None:
    """`_mean` with weights `w` into `out` and with weights `u` into `other`."""
    for d in range(out.shape[0]):
        out[d] = _ZERO
        other[d] = _ZERO
    total, sum_u = _ZERO, _ZERO
    fours = count // 4 * 4
    for t in range(0, fours, 4):
        v0, v1, v2, v3 = values[t], values[t + 1], values[t + 2], values[t + 3]
        w0, w1, w2, w3 = w[t], w[t + 1], w[t + 2], w[t + 3]
        u0, u1, u2, u3 = u[t], u[t + 1], u[t + 2], u[t + 3]
        total = total + w0 + w1 + w2 + w3
        sum_u = sum_u + u0 + u1 + u2 + u3
        for d in range(out.shape[0]):
            out[d] = out[d] + w0 * v0[d] + w1 * v1[d] + w2 * v2[d] + w3 * v3[d]
            other[d] = other[d] + u0 * v0[d] + u1 * v1[d] + u2 * v2[d] + u3 * v3[d]
    for t in range(fours, count):
        total = total + w[t]
        sum_u = sum_u + u[t]
        for d in range(out.shape[0]):
            out[d] = out[d] + w[t] * values[t, d]
            other[d] = other[d] + u[t] * values[t, d]
    for d in range(out.shape[0]):
        out[d] = out[d] / total
        other[d] = other[d] / sum_u
