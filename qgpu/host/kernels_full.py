"""Triton kernels of the fused decode step for full-attention layers; see ``kernels``."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, tensor

from qgpu.host.kernels import begin, bf16, normed_rows, rows_of, sigmoid, wait


@triton.jit(do_not_specialize=["k_from", "v_from"])
def project_full(
    x: tensor, norm: tensor, q: tensor, k: tensor, v: tensor, out: tensor, listed: tensor,
    eps: tensor, n_q: tensor, n_kv: tensor, k_from: tensor, v_from: tensor, K: constexpr,
    CHUNK: constexpr, ROWS: constexpr, LISTED: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Norm, then queries with their gates, keys and values, one after another."""
    begin(PDL)
    program = tl.program_id(0)
    if program < k_from:
        rows = rows_of(program, 0, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, q, rows, n_q, K, CHUNK, PDL)
        tl.store(out + rows, values.to(tl.bfloat16), mask=rows < n_q)
    elif program < v_from:
        rows = rows_of(program, k_from, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, k, rows, n_kv, K, CHUNK, PDL)
        tl.store(out + n_q + rows, values.to(tl.bfloat16), mask=rows < n_kv)
    else:
        rows = rows_of(program, v_from, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, v, rows, n_kv, K, CHUNK, PDL)
        tl.store(out + n_q + n_kv + rows, values.to(tl.bfloat16), mask=rows < n_kv)


@triton.jit
def _rotated(
    source: tensor, norm: tensor, eps: tensor, cos: tensor, sin: tensor, DIM: constexpr,
    ROTARY: constexpr,
) -> tensor:  # fmt: skip
    """One head through its RMSNorm and the rotary embedding of one position."""
    d = tl.arange(0, DIM)
    turned = d < ROTARY
    half: constexpr = ROTARY // 2
    other = tl.where(turned, tl.where(d < half, d + half, d - half), d)
    head = tl.load(source + d).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(head * head, 0) / DIM + eps)
    head = bf16(head * scale * (1.0 + tl.load(norm + d).to(tl.float32)))
    partner = tl.load(source + other).to(tl.float32)
    partner = bf16(partner * scale * (1.0 + tl.load(norm + other).to(tl.float32)))
    partner = tl.where(d < half, -partner, partner)
    c = tl.load(cos + d, mask=turned, other=0.0).to(tl.float32)
    s = tl.load(sin + d, mask=turned, other=0.0).to(tl.float32)
    return tl.where(turned, bf16(head * c) + bf16(partner * s), head).to(tl.bfloat16)


@triton.jit
def place_keys(
    inputs: tensor, q_norm: tensor, k_norm: tensor, cos: tensor, sin: tensor, position: tensor,
    queries: tensor, keys: tensor, values: tensor, eps: tensor, n_heads: tensor, n_kv_heads: tensor,
    capacity: tensor, DIM: constexpr, ROTARY: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """Queries ready for the scores; this token's key and value go to their place in the cache."""
    begin(PDL)
    head = tl.program_id(0)
    wait(PDL)
    at = tl.load(position)
    d = tl.arange(0, DIM)
    if head < n_heads:
        ready = _rotated(
            inputs + head * 2 * DIM, q_norm, eps, cos + at * ROTARY, sin + at * ROTARY, DIM, ROTARY
        )
        tl.store(queries + head * DIM + d, ready)
    else:
        kv = head - n_heads
        key = inputs + (2 * n_heads + kv) * DIM
        ready = _rotated(key, k_norm, eps, cos + at * ROTARY, sin + at * ROTARY, DIM, ROTARY)
        place = (kv.to(tl.int64) * capacity + at) * DIM + d
        tl.store(keys + place, ready)
        tl.store(values + place, tl.load(key + n_kv_heads * DIM + d))


@triton.jit
def attend(
    queries: tensor, keys: tensor, values: tensor, position: tensor, out: tensor, top: tensor,
    mass: tensor, scaling: tensor, capacity: tensor, GROUP: constexpr, PADDED: constexpr,
    DIM: constexpr, BLOCK: constexpr, PARTS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """One of PARTS stretches of the positions, for the query heads of one key head: values
    weighted by exp(score - largest score), the largest score and the sum of the weights."""
    begin(PDL)
    kv, part = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    n = tl.load(position).to(tl.int32) + 1
    stretch = tl.cdiv(tl.cdiv(n, PARTS), BLOCK) * BLOCK
    d, g = tl.arange(0, DIM), tl.arange(0, PADDED)
    heads = kv * GROUP + g
    q = tl.load(queries + heads[:, None] * DIM + d[None, :], mask=(g < GROUP)[:, None], other=0.0)
    base = kv.to(tl.int64) * capacity * DIM
    high = tl.full([PADDED], -1e30, tl.float32)
    sums = tl.zeros([PADDED], tl.float32)
    total = tl.zeros([PADDED, DIM], tl.float32)
    for start in range(part * stretch, tl.minimum((part + 1) * stretch, n), BLOCK):
        places = start + tl.arange(0, BLOCK)
        cells = base + places[:, None] * DIM + d[None, :]
        inside = (places < n)[:, None]
        k = tl.load(keys + cells, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scaling
        scores = tl.where((places < n)[None, :], scores, -1e30)
        higher = tl.maximum(high, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(high - higher)
        sums = sums * shrink + tl.sum(weights, 1)
        v = tl.load(values + cells, mask=inside, other=0.0)
        total = total * shrink[:, None] + tl.dot(weights.to(tl.bfloat16), v)
        high = higher
    slots = heads * PARTS + part
    ok = g < GROUP
    tl.store(top + slots, high, mask=ok)
    tl.store(mass + slots, sums, mask=ok)
    tl.store(out + slots[:, None] * DIM + d[None, :], total, mask=ok[:, None])


@triton.jit
def combine(
    parts: tensor, top: tensor, mass: tensor, inputs: tensor, out: tensor, DIM: constexpr,
    PARTS: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """The stretches of one head put together, times the sigmoid of the head's gate."""
    begin(PDL)
    head = tl.program_id(0)
    wait(PDL)
    p, d = tl.arange(0, PARTS), tl.arange(0, DIM)
    high = tl.load(top + head * PARTS + p)
    weight = tl.exp(high - tl.max(high, 0))
    whole = tl.sum(weight * tl.load(mass + head * PARTS + p), 0)
    values = tl.load(parts + (head * PARTS + p[:, None]) * DIM + d[None, :])
    read = bf16(tl.math.div_rn(tl.sum(values * weight[:, None], 0), whole))
    gate = tl.load(inputs + head * 2 * DIM + DIM + d).to(tl.float32)
    tl.store(out + head * DIM + d, (read * bf16(sigmoid(gate))).to(tl.bfloat16))
