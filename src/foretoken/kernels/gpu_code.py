# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Kernels for a GPU, in Triton. `foretoken.kernels.gpu` calls them.

No kernel's result for a row depends on another row, on the number of rows, or on the places where keys lie. Each
program computes one row (or 16 rows of a matrix product, which the hardware treats alike), and takes keys in blocks
that begin at fixed positions of the text. So a check of a tree gives the bits of plain decoding.

What a pass knows of its rows is one array of int64, `rows`, of which `foretoken.kernels.gpu.RowsOnDevice` says the
order. It is read by address, so a pass can be recorded once and repeated with other rows (`torch.cuda.CUDAGraph`).

Triton compiles a kernel anew for numbers and addresses that are multiples of 16. What differs from pass to pass is left
out of that (`do_not_specialize`), so there is one program for all passes.

Triton's language is the subset of Python that its compiler knows, so the functions have no types, and what they need
comes as single numbers and addresses: a kernel takes no objects.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

from foretoken.formats import table

INT4, MXFP4, INT8 = 0, 1, 2  # the kinds of codes
MXFP4_KIND: tl.constexpr = tl.constexpr(MXFP4)
INT8_KIND: tl.constexpr = tl.constexpr(INT8)
# what products take; Triton's interpreter, which runs the kernels for tests on the CPU, cannot multiply bf16
FACTOR: tl.constexpr = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16)
SEGMENT: tl.constexpr = tl.constexpr(20)  # numbers that describe a text: as `gpu.SEGMENT`, which imports this
TILE: tl.constexpr = tl.constexpr(table.TILE)  # outputs of a low-bit weight that lie together


@triton.jit
def spread(x, out, width, SIZE: tl.constexpr):
    """Copy a piece of a row of [rows, width], converted to the type of `out`."""
    row = tl.program_id(0)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    values = tl.load(x + row * width + at, mask=at < width, other=0.0)
    tl.store(out + row * width + at, values.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def rms_norm(x, weight, out, width, eps, SIZE: tl.constexpr):
    """Norm one vector."""
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0)
    mean = tl.sum(values * values, 0) / width
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, values / tl.sqrt(mean + eps) * scale, mask=inside)


@triton.jit(do_not_specialize=["count"])
def silu_mul(gate, up, out, count, SIZE: tl.constexpr):
    """silu(gate) * up, number by number."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    x = tl.load(gate + at, mask=inside, other=0.0)
    y = tl.load(up + at, mask=inside, other=0.0)
    tl.store(out + at, x / (1.0 + tl.exp(-x)) * y, mask=inside)


@triton.jit(do_not_specialize=["count", "table", "layer"])
def place(
    query, key, value, out, rows, cos, sin, count, table, layer, heads, kv_heads, half, row_bytes,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Rotate one head of one row: number i with number i + half. Queries go to `out`; keys, and values as they are, to
    the row's slot."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(rows + count + row)
    segment = rows + table + tl.load(rows + 2 * count + row) * SEGMENT
    slot = tl.load(rows + 3 * count + row)
    if slot >= 0:
        width = 2 * half
        if head < heads + kv_heads:
            at = tl.arange(0, SIZE)
            inside = at < half
            c = tl.load(cos + position * half + at, mask=inside, other=0.0)
            s = tl.load(sin + position * half + at, mask=inside, other=0.0)
            if head < heads:
                first = query + (row * heads + head) * width
            else:
                first = key + (row * kv_heads + head - heads) * width
            a = tl.load(first + at, mask=inside, other=0.0)
            b = tl.load(first + half + at, mask=inside, other=0.0)
            low = a * c - b * s
            high = b * c + a * s
            if head < heads:
                to = out + (row * heads + head) * width
                tl.store(to + at, low, mask=inside)
                tl.store(to + half + at, high, mask=inside)
            else:
                address = tl.load(segment + 1) + layer * tl.load(segment + 3) + slot * row_bytes
                there = address.to(tl.pointer_type(DTYPE)) + (head - heads) * width
                tl.store(there + at, low.to(DTYPE), mask=inside)
                tl.store(there + half + at, high.to(DTYPE), mask=inside)
        else:
            which = head - heads - kv_heads
            dims = tl.arange(0, WHOLE)
            whole = dims < width
            v = tl.load(value + (row * kv_heads + which) * width + dims, mask=whole, other=0.0)
            address = tl.load(segment + 2) + layer * tl.load(segment + 3) + slot * row_bytes
            there = address.to(tl.pointer_type(DTYPE)) + which * width
            tl.store(there + dims, v.to(DTYPE), mask=whole)


@triton.jit(
    do_not_specialize=["count", "table", "paths", "layer", "window", "chunks"],
    do_not_specialize_on_alignment=["rows", "query", "sums", "tops", "weights"],
)
def attend(
    query, rows, sums, tops, weights,
    count, table, paths, layer, window, heads, group, width, row_bytes, scale, chunks,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr, ITEM: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """One head of one row, over the keys of one chunk of positions: BLOCKS blocks of BLOCK.

    sums, tops, weights: the weighted sum of values, the largest score, and the sum of weights, for `join`.
    """
    row, head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    position = tl.load(rows + count + row).to(tl.int32)
    first = tl.maximum(position + 1 - window, 0)
    begin = chunk * BLOCK * BLOCKS
    if begin <= position and begin + BLOCK * BLOCKS > first:
        segment = rows + table + tl.load(rows + 2 * count + row) * SEGMENT
        path = tl.load(rows + 4 * count + row)
        length = tl.load(segment).to(tl.int32)
        dims = tl.arange(0, SIZE)
        inside = dims < width
        q = tl.load(query + (row * heads + head) * width + dims, mask=inside, other=0.0) * scale
        below = (head // group) * width * ITEM
        # where the keys and values of this layer begin: of the slots, and of four stretches of the prefix
        own_k = tl.load(segment + 1) + layer * tl.load(segment + 3) + below
        own_v = tl.load(segment + 2) + layer * tl.load(segment + 3) + below
        end_a = tl.load(segment + 4).to(tl.int32)
        a_k = tl.load(segment + 5) + layer * tl.load(segment + 7) + below
        a_v = tl.load(segment + 6) + layer * tl.load(segment + 7) + below
        end_b = tl.load(segment + 8).to(tl.int32)
        b_k = tl.load(segment + 9) + layer * tl.load(segment + 11) + below
        b_v = tl.load(segment + 10) + layer * tl.load(segment + 11) + below
        end_c = tl.load(segment + 12).to(tl.int32)
        c_k = tl.load(segment + 13) + layer * tl.load(segment + 15) + below
        c_v = tl.load(segment + 14) + layer * tl.load(segment + 15) + below
        d_k = tl.load(segment + 17) + layer * tl.load(segment + 19) + below
        d_v = tl.load(segment + 18) + layer * tl.load(segment + 19) + below
        top = float("-inf")
        weight = 0.0
        total = tl.zeros([SIZE], tl.float32)
        for block in range(BLOCKS):
            at = begin + block * BLOCK + tl.arange(0, BLOCK)
            seen = (at <= position) & (at >= first)
            own = seen & (at >= length)
            where = path + tl.zeros([BLOCK], tl.int64)
            slot = tl.load(rows + paths + where + at - length, mask=own & (where >= 0), other=0)
            slot = tl.where(where >= 0, slot, at - length)
            far = tl.where(own, slot, at.to(tl.int64)) * row_bytes
            key_at = tl.where(at < end_c, c_k, d_k)
            key_at = tl.where(at < end_a, a_k, tl.where(at < end_b, b_k, key_at))
            key_at = tl.where(own, own_k, key_at) + far
            value_at = tl.where(at < end_c, c_v, d_v)
            value_at = tl.where(at < end_a, a_v, tl.where(at < end_b, b_v, value_at))
            value_at = tl.where(own, own_v, value_at) + far
            keys = key_at.to(tl.pointer_type(DTYPE))[:, None]
            values = value_at.to(tl.pointer_type(DTYPE))[:, None]
            if ALIGNED:  # then a load takes many bytes
                keys = tl.multiple_of(keys, (16, 16))
                values = tl.multiple_of(values, (16, 16))
            mask = seen[:, None] & inside[None, :]
            k = tl.load(keys + dims[None, :], mask=mask, other=0.0)
            v = tl.load(values + dims[None, :], mask=mask, other=0.0)
            scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
            now = tl.maximum(top, tl.max(scores, 0))
            # a block in which nothing is seen leaves everything as it was
            base = tl.where(now == float("-inf"), 0.0, now)
            shares = tl.where(seen, tl.exp(scores - base), 0.0)
            shrink = tl.where(top == float("-inf"), 0.0, tl.exp(top - base))
            total = total * shrink + tl.sum(v.to(tl.float32) * shares[:, None], 0)
            weight = weight * shrink + tl.sum(shares, 0)
            top = now
        to = (row * heads + head) * chunks + chunk
        tl.store(sums + to * width + dims, total, mask=inside)
        tl.store(tops + to, top)
        tl.store(weights + to, weight)


@triton.jit(
    do_not_specialize=["count", "window", "chunks"],
    do_not_specialize_on_alignment=["rows", "out", "sums", "tops", "weights"],
)
def join(sums, tops, weights, rows, out, count, window, heads, width, chunks, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Put the chunks of one head of one row together, in the order of positions."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(rows + count + row).to(tl.int32)
    first = tl.maximum(position + 1 - window, 0)
    dims = tl.arange(0, SIZE)
    inside = dims < width
    top = float("-inf")
    weight = 0.0
    total = tl.zeros([SIZE], tl.float32)
    for chunk in range(first // CHUNK, position // CHUNK + 1):
        at = (row * heads + head) * chunks + chunk
        its = tl.load(tops + at)
        now = tl.maximum(top, its)
        shrink = tl.where(top == float("-inf"), 0.0, tl.exp(top - now))
        grow = tl.exp(its - now)
        total = total * shrink + tl.load(sums + at * width + dims, mask=inside, other=0.0) * grow
        weight = weight * shrink + tl.load(weights + at) * grow
        top = now
    tl.store(out + (row * heads + head) * width + dims, total / weight, mask=inside)


@triton.jit
def _e2m1(codes):
    """The numbers that codes of MXFP4 stand for, uint8: float32."""
    size = (codes & 7).to(tl.int32)
    # 0, 0.5, 1, 1.5, then (2 + the lowest bit) / 4 times a power of two
    number = tl.where(size < 2, size * 0.5, (2 + (size & 1)) * 0.25 * (1 << (size >> 1)).to(tl.float32))
    return tl.where(codes >= 8, -number, number)


@triton.jit
def _more_128(codes):
    """128 more than codes of four bits, uint8: bf16. Beside converting numbers this is next to nothing."""
    return (codes.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)


@triton.jit
def _part(x, m, at, there, inputs):
    """Some inputs of some rows, bf16, as products take them."""
    numbers = tl.load(x + m[:, None] * inputs + at[None, :], mask=there & (at < inputs)[None, :], other=0.0)
    return numbers.to(tl.bfloat16).to(FACTOR)


@triton.jit(do_not_specialize=["rows", "each"])
def coded(
    x, codes, scales, zeros, out, rows, outputs, inputs, groups, each,
    KIND: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Some rows times some outputs of a low-bit weight, over `each` groups of inputs: a part of the sum, for `total`.

    codes: [tiles, groups, TILE, bytes]; scales, zeros: [tiles, groups, TILE]. A byte of four-bit codes holds an input
    of a group's first half, and above it the input of the second half in the same place. Codes are multiplied as they
    are, and scale and zero point are applied to the sum of a group.
    """
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    there, real = (m < rows)[:, None], n < outputs
    sum_ = tl.zeros([ROWS, OUTPUTS], tl.float32)
    none = tl.zeros([ROWS, OUTPUTS], tl.float32)
    tile = (n // TILE).to(tl.int64) * groups
    within = n % TILE
    last = tl.minimum((part + 1) * each, groups)
    HALF: tl.constexpr = GROUP // 2
    for group in range(part * each, last):
        row = (tile + group) * TILE + within
        first = group * GROUP
        if KIND == INT8_KIND:
            k = tl.arange(0, GROUP)
            w = tl.load(codes + row[:, None] * GROUP + k[None, :], mask=real[:, None], other=0)
            a = _part(x, m, first + k, there, inputs)
            sum_ = tl.dot(a, tl.trans(w.to(tl.float32).to(tl.bfloat16).to(FACTOR)), sum_)
        else:
            k = tl.arange(0, HALF)
            both = tl.load(codes + row[:, None] * HALF + k[None, :], mask=real[:, None], other=0)
            a = _part(x, m, first + k, there, inputs)
            b = _part(x, m, first + HALF + k, there, inputs)
            if KIND == MXFP4_KIND:
                power = tl.load(scales + row, mask=real, other=127).to(tl.int32)
                scale = (power << 23).to(tl.float32, bitcast=True)
                found = tl.dot(a, tl.trans(_e2m1(both & 15).to(tl.bfloat16).to(FACTOR)), none)
                found = tl.dot(b, tl.trans(_e2m1(both >> 4).to(tl.bfloat16).to(FACTOR)), found)
                sum_ += found * scale[None, :]
            else:
                scale = tl.load(scales + row, mask=real, other=0.0).to(tl.float32)
                zero = tl.load(zeros + row, mask=real, other=0.0).to(tl.float32) + 128.0
                found = tl.dot(a, tl.trans(_more_128(both & 15).to(FACTOR)), none)
                found = tl.dot(b, tl.trans(_more_128(both >> 4).to(FACTOR)), found)
                inputs_sum = tl.sum(a.to(tl.float32), 1) + tl.sum(b.to(tl.float32), 1)
                sum_ += (found - inputs_sum[:, None] * zero[None, :]) * scale[None, :]
    if KIND == INT8_KIND:
        sum_ = sum_ * tl.load(scales + n, mask=real, other=0.0)[None, :]
    to = out + part.to(tl.int64) * rows * outputs
    tl.store(to + m[:, None] * outputs + n[None, :], sum_, mask=there & real[None, :])


@triton.jit(
    do_not_specialize=["rows", "count"],
    do_not_specialize_on_alignment=["out"],
)
def total(parts, bias, out, rows, outputs, count, SIZE: tl.constexpr, BIASED: tl.constexpr):
    """Add the parts of a row's sums, in order; then the bias. The result is rounded as a layer of bf16 weights does."""
    row = tl.program_id(0)
    n = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    real = n < outputs
    sum_ = tl.zeros([SIZE], tl.float32)
    for part in range(count):
        sum_ += tl.load(parts + (part * rows + row) * outputs + n, mask=real, other=0.0)
    if BIASED:
        sum_ += tl.load(bias + n, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * outputs + n, sum_.to(tl.bfloat16).to(tl.float32), mask=real)
