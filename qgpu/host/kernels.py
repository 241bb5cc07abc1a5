"""Triton kernels of the fused decode step: one token, batch 1, bf16 weights of a Qwen3.5 layer.

A linear-attention layer is five kernels, a full-attention layer seven (``kernels_full``). What
stands before a matrix (a norm) is done again by every program of the matrix's kernel; what follows
it row by row (convolution, SwiGLU, residual) is done by the program that owns the row. Each value
is rounded to bf16 where transformers' modules round it; sums run in float32, in their own order.

With PDL a kernel may start while the one before still runs: it asks for its weights, which nobody
writes, and waits before it reads or writes anything else. Only imported where Triton is.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TINY: constexpr = constexpr(1e-6)  # eps of transformers' l2norm


@triton.jit
def bf16(x: tensor) -> tensor:
    """Rounded to bf16, as float32."""
    return x.to(tl.bfloat16).to(tl.float32)


@triton.jit
def sigmoid(x: tensor) -> tensor:
    return tl.math.div_rn(1.0, 1.0 + tl.exp(-x))


@triton.jit
def _silu(x: tensor) -> tensor:
    return tl.math.div_rn(x, 1.0 + tl.exp(-x))


@triton.jit
def _softplus(x: tensor) -> tensor:
    """log(1 + e^x) without loss where e^x is small; x itself from 20 up, as torch has it."""
    e = tl.exp(tl.minimum(x, 20.0))
    u = 1.0 + e
    small = tl.where(u == 1.0, e, tl.log(u) * tl.math.div_rn(e, tl.where(u == 1.0, 1.0, u - 1.0)))
    return tl.where(x > 20.0, x, small)


@triton.jit
def begin(PDL: constexpr) -> None:
    """The next kernel may start to load once every program of this one has started."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: constexpr) -> None:
    """From here on everything that earlier kernels wrote is there."""
    if PDL:
        gdc_wait()


@triton.jit
def rows_of(
    program: tensor, before: tensor, listed: tensor, ROWS: constexpr, LISTED: constexpr,
) -> tensor:  # fmt: skip
    """The rows that a program takes of its matrix: those of the list, where places left over hold
    a row beyond the last, or the next of all, when ``before`` programs serve other matrices."""
    rows = (program - before) * ROWS + tl.arange(0, ROWS)
    if LISTED:
        rows = tl.load(listed + program * ROWS + tl.arange(0, ROWS))
    return rows


@triton.jit
def _tile(
    matrix: tensor, rows: tensor, n_rows: tensor, k: tensor, K: constexpr, CHUNK: constexpr,
) -> tensor:  # fmt: skip
    """[rows, CHUNK] of a row-major matrix with K columns, from column k, as it is stored."""
    columns = k + tl.arange(0, CHUNK)
    return tl.load(
        matrix + rows[:, None].to(tl.int64) * K + columns[None, :],
        mask=rows[:, None] < n_rows, other=0.0, eviction_policy="evict_first",
    )  # fmt: skip


@triton.jit
def _rms_scale(x: tensor, eps: tensor, K: constexpr, CHUNK: constexpr) -> tensor:
    """What RMSNorm multiplies x by, before its weight."""
    squares = tl.zeros([CHUNK], tl.float32)
    for k in tl.static_range(0, K, CHUNK):
        part = tl.load(x + k + tl.arange(0, CHUNK)).to(tl.float32)
        squares += part * part
    return tl.math.rsqrt(tl.sum(squares, 0) / K + eps)


@triton.jit
def _gain(norm: tensor, k: tensor, CHUNK: constexpr) -> tensor:
    """What RMSNorm multiplies CHUNK values by, from k, after the scale."""
    return 1.0 + tl.load(norm + k + tl.arange(0, CHUNK)).to(tl.float32)


@triton.jit
def _normed(x: tensor, gain: tensor, scale: tensor, k: tensor, CHUNK: constexpr) -> tensor:
    """CHUNK values of RMSNorm(x), from k, rounded once."""
    part = tl.load(x + k + tl.arange(0, CHUNK)).to(tl.float32) * scale
    return bf16(part * gain)


@triton.jit
def normed_rows(
    x: tensor, norm: tensor, eps: tensor, matrix: tensor, rows: tensor, n_rows: tensor,
    K: constexpr, CHUNK: constexpr, PDL: constexpr,
) -> tensor:  # fmt: skip
    """matrix[rows] @ RMSNorm(x), not yet rounded."""
    tile = _tile(matrix, rows, n_rows, 0, K, CHUNK)  # asked for first: in flight during the norm
    gain = _gain(norm, 0, CHUNK)
    wait(PDL)
    scale = _rms_scale(x, eps, K, CHUNK)
    total = tile.to(tl.float32) * _normed(x, gain, scale, 0, CHUNK)[None, :]
    for k in tl.static_range(CHUNK, K, CHUNK):
        tile = _tile(matrix, rows, n_rows, k, K, CHUNK)
        part = _normed(x, _gain(norm, k, CHUNK), scale, k, CHUNK)
        total += tile.to(tl.float32) * part[None, :]
    return tl.sum(total, 1)


@triton.jit
def _conv_silu(
    values: tensor, state: tensor, taps: tensor, rows: tensor, n_rows: tensor, TAPS: constexpr,
    PADDED: constexpr,
) -> tensor:  # fmt: skip
    """The convolution's next output for each channel, after SiLU; the state moves on by one."""
    t = tl.arange(0, PADDED)[None, :]
    places = rows[:, None] * TAPS + t
    ok = (rows[:, None] < n_rows) & (t < TAPS)
    seen = tl.load(state + places + 1, mask=ok & (t + 1 < TAPS), other=0.0).to(tl.float32)
    seen = tl.where(t + 1 == TAPS, values[:, None], seen)
    tap = tl.load(taps + places, mask=ok, other=0.0).to(tl.float32)
    total = tl.sum(seen * tap, 1)
    tl.debug_barrier()  # threads that hold copies of a channel have loaded it too
    tl.store(state + places, seen.to(tl.bfloat16), mask=ok)
    return _silu(bf16(total))


@triton.jit(do_not_specialize=["z_from", "b_from", "a_from"])
def project_linear(
    x: tensor, norm: tensor, qkv: tensor, z: tensor, b: tensor, a: tensor, conv_state: tensor,
    conv_taps: tensor, out: tensor, listed: tensor, eps: tensor, n_qkv: tensor, n_z: tensor,
    n_heads: tensor, z_from: tensor, b_from: tensor, a_from: tensor, K: constexpr, CHUNK: constexpr,
    ROWS: constexpr, LISTED: constexpr, TAPS: constexpr, PADDED: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """All inputs of a linear-attention layer: norm, four matrices, convolution and SiLU of q, k, v.

    ``out`` holds q, k, v, z, b, a one after another. Programs: those of qkv, from ``z_from`` those
    of z, and so on.
    """
    begin(PDL)
    program = tl.program_id(0)
    if program < z_from:
        rows = rows_of(program, 0, listed, ROWS, LISTED)
        values = bf16(normed_rows(x, norm, eps, qkv, rows, n_qkv, K, CHUNK, PDL))
        values = _conv_silu(values, conv_state, conv_taps, rows, n_qkv, TAPS, PADDED)
        tl.store(out + rows, values.to(tl.bfloat16), mask=rows < n_qkv)
    elif program < b_from:
        rows = rows_of(program, z_from, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, z, rows, n_z, K, CHUNK, PDL)
        tl.store(out + n_qkv + rows, values.to(tl.bfloat16), mask=rows < n_z)
    elif program < a_from:
        rows = rows_of(program, b_from, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, b, rows, n_heads, K, CHUNK, PDL)
        tl.store(out + n_qkv + n_z + rows, values.to(tl.bfloat16), mask=rows < n_heads)
    else:
        rows = rows_of(program, a_from, listed, ROWS, LISTED)
        values = normed_rows(x, norm, eps, a, rows, n_heads, K, CHUNK, PDL)
        tl.store(out + n_qkv + n_z + n_heads + rows, values.to(tl.bfloat16), mask=rows < n_heads)


@triton.jit
def delta(
    inputs: tensor, state: tensor, a_log: tensor, dt_bias: tensor, out: tensor, heads: tensor,
    n_keys: tensor, n_heads: tensor, GROUP: constexpr, KEY: constexpr, VALUE: constexpr,
    PART: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """One token of the gated delta rule in ``heads``, each on PART of its value columns, which do
    not touch one another. ``inputs`` is what ``project_linear`` wrote."""
    begin(PDL)
    head, part = tl.load(heads + tl.program_id(0)), tl.program_id(1)
    places = tl.arange(0, KEY)
    columns = part * PART + tl.arange(0, PART)
    cells = state + (head * KEY + places[:, None]) * VALUE + columns[None, :]
    decay = tl.exp(tl.load(a_log + head).to(tl.float32))
    bias = tl.load(dt_bias + head).to(tl.float32)
    wait(PDL)
    gates = inputs + 2 * n_keys + 2 * n_heads * VALUE + head
    beta = tl.load(gates).to(tl.float32)
    a = tl.load(gates + n_heads).to(tl.float32)
    s = tl.load(cells)
    group = head // GROUP * KEY
    q = tl.load(inputs + group + places).to(tl.float32)
    k = tl.load(inputs + n_keys + group + places).to(tl.float32)
    v = tl.load(inputs + 2 * n_keys + head * VALUE + columns).to(tl.float32)
    beta = bf16(sigmoid(beta))
    g = -decay * _softplus(a + bias)
    q = q * tl.math.rsqrt(tl.sum(q * q, 0) + TINY) * (KEY**-0.5)
    k = k * tl.math.rsqrt(tl.sum(k * k, 0) + TINY)
    s = s * tl.exp(g)
    error = (v - tl.sum(s * k[:, None], 0)) * beta
    s += k[:, None] * error[None, :]
    tl.store(cells, s)
    tl.store(out + head * VALUE + columns, tl.sum(s * q[:, None], 0).to(tl.bfloat16))


@triton.jit
def _read(
    o: tensor, z: tensor, norm: tensor, eps: tensor, k: tensor, HEADS: constexpr, VALUE: constexpr,
) -> tensor:  # fmt: skip
    """HEADS heads from value k on through the gated norm, as one vector."""
    columns = tl.arange(0, VALUE)
    places = k + tl.arange(0, HEADS)[:, None] * VALUE + columns[None, :]
    read = tl.load(o + places).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(read * read, 1) / VALUE + eps)
    read = bf16(read * scale[:, None])
    read = bf16(tl.load(norm + columns).to(tl.float32)[None, :] * read)
    read = bf16(read * _silu(tl.load(z + places).to(tl.float32)))
    return tl.reshape(read, [HEADS * VALUE])


@triton.jit
def read_out(
    x: tensor, o: tensor, z: tensor, norm: tensor, matrix: tensor, eps: tensor, listed: tensor,
    n_rows: tensor, K: constexpr, HEADS: constexpr, VALUE: constexpr, ROWS: constexpr,
    LISTED: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """x += matrix @ (gated norm of what the heads read)."""
    begin(PDL)
    rows = rows_of(tl.program_id(0), 0, listed, ROWS, LISTED)
    tile = _tile(matrix, rows, n_rows, 0, K, HEADS * VALUE)
    wait(PDL)
    total = tile.to(tl.float32) * _read(o, z, norm, eps, 0, HEADS, VALUE)[None, :]
    for k in tl.static_range(HEADS * VALUE, K, HEADS * VALUE):
        tile = _tile(matrix, rows, n_rows, k, K, HEADS * VALUE)
        total += tile.to(tl.float32) * _read(o, z, norm, eps, k, HEADS, VALUE)[None, :]
    _add(x, rows, n_rows, tl.sum(total, 1))


@triton.jit
def _add(x: tensor, rows: tensor, n_rows: tensor, values: tensor) -> None:
    ok = rows < n_rows
    old = tl.load(x + rows, mask=ok, other=0.0).to(tl.float32)
    tl.store(x + rows, (old + bf16(values)).to(tl.bfloat16), mask=ok)


@triton.jit
def gate_up(
    x: tensor, norm: tensor, gate: tensor, up: tensor, out: tensor, eps: tensor, listed: tensor,
    n_rows: tensor, K: constexpr, CHUNK: constexpr, ROWS: constexpr, LISTED: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """silu(gate @ RMSNorm(x)) * (up @ RMSNorm(x))."""
    begin(PDL)
    rows = rows_of(tl.program_id(0), 0, listed, ROWS, LISTED)
    g_tile = _tile(gate, rows, n_rows, 0, K, CHUNK)
    u_tile = _tile(up, rows, n_rows, 0, K, CHUNK)
    gain = _gain(norm, 0, CHUNK)
    wait(PDL)
    scale = _rms_scale(x, eps, K, CHUNK)
    part = _normed(x, gain, scale, 0, CHUNK)[None, :]
    g, u = g_tile.to(tl.float32) * part, u_tile.to(tl.float32) * part
    for k in tl.static_range(CHUNK, K, CHUNK):
        part = _normed(x, _gain(norm, k, CHUNK), scale, k, CHUNK)[None, :]
        g += _tile(gate, rows, n_rows, k, K, CHUNK).to(tl.float32) * part
        u += _tile(up, rows, n_rows, k, K, CHUNK).to(tl.float32) * part
    active = bf16(_silu(bf16(tl.sum(g, 1)))) * bf16(tl.sum(u, 1))
    tl.store(out + rows, active.to(tl.bfloat16), mask=rows < n_rows)


@triton.jit
def add_rows(
    x: tensor, values: tensor, matrix: tensor, listed: tensor, n_rows: tensor, K: constexpr,
    CHUNK: constexpr, ROWS: constexpr, LISTED: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """x += matrix @ values."""
    begin(PDL)
    rows = rows_of(tl.program_id(0), 0, listed, ROWS, LISTED)
    tile = _tile(matrix, rows, n_rows, 0, K, CHUNK)
    wait(PDL)
    places = tl.arange(0, CHUNK)
    total = tile.to(tl.float32) * tl.load(values + places).to(tl.float32)[None, :]
    for k in tl.static_range(CHUNK, K, CHUNK):
        tile = _tile(matrix, rows, n_rows, k, K, CHUNK)
        total += tile.to(tl.float32) * tl.load(values + k + places).to(tl.float32)[None, :]
    _add(x, rows, n_rows, tl.sum(total, 1))


@triton.jit
def best_rows(
    x: tensor, norm: tensor, matrix: tensor, best: tensor, where: tensor, eps: tensor,
    n_rows: tensor, per_program: tensor, K: constexpr, CHUNK: constexpr, ROWS: constexpr,
    PDL: constexpr,
) -> None:  # fmt: skip
    """The largest of matrix @ RMSNorm(x), rounded as logits are, in each program's rows, and the
    lowest row that has it."""
    begin(PDL)
    program = tl.program_id(0)
    wait(PDL)
    scale = _rms_scale(x, eps, K, CHUNK)
    top, place = float("-inf"), n_rows
    first = program * per_program * ROWS
    for start in range(first, tl.minimum(first + per_program * ROWS, n_rows), ROWS):
        rows = start + tl.arange(0, ROWS)
        total = tl.zeros([ROWS, CHUNK], tl.float32)
        for k in tl.static_range(0, K, CHUNK):
            tile = _tile(matrix, rows, n_rows, k, K, CHUNK).to(tl.float32)
            total += tile * _normed(x, _gain(norm, k, CHUNK), scale, k, CHUNK)[None, :]
        logits = tl.where(rows < n_rows, bf16(tl.sum(total, 1)), float("-inf"))
        here = tl.max(logits, 0)
        lowest = tl.min(tl.where(logits == here, rows, n_rows), 0)
        place = tl.where(here > top, lowest, place)
        top = tl.maximum(top, here)
    tl.store(best + program, top)
    tl.store(where + program, place)


@triton.jit
def pick(
    best: tensor, where: tensor, n: tensor, ids: tensor, written: tensor, count: tensor,
    position: tensor, SIZE: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """The lowest of the best rows is the next token: it is written down and will be fed."""
    begin(PDL)
    programs = tl.arange(0, SIZE)
    wait(PDL)
    tops = tl.load(best + programs, mask=programs < n, other=float("-inf"))
    rows = tl.load(where + programs, mask=programs < n, other=2**31 - 1)
    token = tl.min(tl.where(tops == tl.max(tops, 0), rows, 2**31 - 1), 0).to(tl.int64)
    done = tl.load(count)
    tl.store(ids, token)
    tl.store(written + done, token)
    tl.store(count, done + 1)
    tl.store(position, tl.load(position) + 1)


@triton.jit
def embed(
    x: tensor, table: tensor, ids: tensor, K: constexpr, CHUNK: constexpr, PDL: constexpr,
) -> None:  # fmt: skip
    """x = the embedding row of the token."""
    begin(PDL)
    wait(PDL)
    row = table + tl.load(ids) * K
    places = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    tl.store(x + places, tl.load(row + places))
