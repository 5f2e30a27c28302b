"""The native kernels' arithmetic, operation by operation, in PyTorch: the definition of their bits.

Every function gives the same bits as every instruction set; tests compare them with `==`. The functions are slow,
because they add step by step in a given order. The weight's format decides the order:

    bf16     Rows are rounded to bf16. For every 32 inputs, products with even index are added one after the other to 0,
             each sum rounded once; so are products with odd index. The two sums are added, and the total is added to
             the result so far. This is the documented order of Intel's tile product (tdpbf16ps).
    fp32     16 sums: sum l is over inputs l, 16 + l, 32 + l, ..., rounded once a step. They are then added by halves:
    fp16     l and l + 8, then l and l + 4, l + 2, l + 1. fp16 weights are widened, rows stay float32.

Zeros fill up the inputs to a multiple of 32 (fp32 and fp16: 16). Subnormal numbers count as zero, in operands and in
results (`flushed`).

Whoever changes what any of this gives raises `DEFINITION`, so that records of before are told from records that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import torch

from foretoken.errors import NativeError
from foretoken.formats.table import PLACES

P = ParamSpec("P")
R = TypeVar("R")

DEFINITION = 2  # from 2 on (November 2026), attention over a bf16 cache rounds its exponentials before it weighs values
BLOCK = PLACES  # positions of one block of attention: those that are put into int8 together
# what a block of attention gives: for each head the largest score, the sum of exponentials, their products with values
Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_SUBNORMAL = 5e-324


@contextmanager
def flushed() -> Iterator[None]:
    """Run on one thread, with subnormal numbers as zero, as native passes do."""
    threads, flushes = torch.get_num_threads(), _flushes()
    torch.set_num_threads(1)
    if not torch.set_flush_denormal(True):
        raise NativeError("this machine cannot count subnormal numbers as zero, which the reference needs")
    try:
        yield
    finally:
        torch.set_flush_denormal(flushes)
        torch.set_num_threads(threads)


def _flushes() -> bool:
    """Whether this thread takes subnormal numbers for zero."""
    return _SUBNORMAL * 1.0 == 0.0


def _flushed(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with flushed():
            return function(*args, **kwargs)

    return run


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c of float32 numbers, rounded once.

    The product is exact in float64. The sum is rounded to odd there, which makes the second rounding right (Boldo and
    Melquiond 2008): if the sum is inexact and its last bit even, the neighbour on the side of the lost part is taken.
    """
    product = a.double() * b.double()
    c = c.double()
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    even = (total.view(torch.int64) & 1) == 0
    outward = (lost > 0) == (total > 0)
    step = torch.where(outward, 1, -1)
    fix = even & (lost != 0) & ~lost.isnan()
    return torch.where(fix, (total.view(torch.int64) + step).view(torch.float64), total).float()


def halves(sums: torch.Tensor) -> torch.Tensor:
    """Sixteen numbers along the last axis, added by halves."""
    for size in (8, 4, 2, 1):
        sums = sums[..., :size] + sums[..., size : 2 * size]
    return sums[..., 0]


def dot16(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x, w: float32 [..., K]. Added in the order of float32 weights."""
    x, w = (_blocks(t, 16) for t in (x, w))
    sums = torch.zeros(16)
    for i in range(x.shape[-2]):
        sums = fused(w[..., i, :], x[..., i, :], sums)
    return halves(sums)


def dot_bf16(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x: float32 [..., K], rounded to bf16 here; w: bf16 [..., K]. Added in the order of bf16 weights."""
    x, w = (_blocks(t.double(), 32) for t in (round_to(x, torch.bfloat16), w))
    total = torch.zeros(())
    for block in range(x.shape[-2]):
        pair = torch.zeros(2)
        for i in range(0, 32, 2):
            # products are exact in float64; rounding a sum to float64, then float32, is as one rounding (Figueroa 1995)
            pair = (w[..., block, i : i + 2] * x[..., block, i : i + 2] + pair.double()).float()
        total = total + (pair[..., 0] + pair[..., 1])
    return total


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., K], followed by zeros to whole blocks: [..., blocks, size]."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % size))
    return padded.view(*padded.shape[:-1], padded.shape[-1] // size, size)


def _root(x: torch.Tensor) -> torch.Tensor:
    # numpy uses the processor's square root; PyTorch's, in float32, is sometimes wrong in the last place (LOG.md)
    return torch.from_numpy(np.asarray(np.sqrt(x.numpy())))  # for a single number numpy returns no array


def dot(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x: float32 [..., K]; w: [..., K], whose format decides the order."""
    return dot_bf16(x, w) if w.dtype == torch.bfloat16 else dot16(x, w.float())


def round_to(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 rounded to a type, to the nearest, ties to even. Subnormal results stay: they become zero when used."""
    flushes = _flushes()
    torch.set_flush_denormal(False)
    try:
        return x.to(dtype)
    finally:
        torch.set_flush_denormal(flushes)


@_flushed
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x: float32 [N, K]; weight: [M, K]; bias: float32 [M]. Returns float32 [N, M]."""
    out = dot(x[:, None, :], weight[None])
    return out if bias is None else out + bias


@_flushed
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: float32 [..., width]; weight: float32 [width]."""
    mean = dot16(x, x) / torch.tensor(float(x.shape[-1]))
    scale = 1.0 / _root(mean + torch.tensor(eps, dtype=torch.float32))
    return x * scale[..., None] * weight


@_flushed
def exponential(x: torch.Tensor) -> torch.Tensor:
    """e to the power of float32 x, to about one unit in the last place."""
    return _exp(x)


def _exp(x: torch.Tensor) -> torch.Tensor:
    """x = n log 2 + r, then Taylor's series of e^r to r^7; 0 below -87.33654."""

    def number(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float32)

    capped = torch.where(number(88.37626) < x, number(88.37626), x)
    shifted = fused(capped, number(1.44269504), number(12582912.0))  # 1.5 * 2^23 + n
    n = shifted - number(12582912.0)
    r = fused(n, number(-1.42860682e-6), fused(n, number(-0.693145752), capped))
    y = fused(number(1.0) / 5040, r, number(1.0) / 720)
    for divisor in (120, 24, 6, 2, 1, 1):
        y = fused(y, r, number(1.0) / divisor)
    power = ((shifted.view(torch.int32) - 0x4B400000 + 127) << 23).view(torch.float32)
    return torch.where(x < number(-87.33654), number(0.0), y * power)


@_flushed
def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate / (1 + e^-gate) * up."""
    return gate / (1.0 + _exp(0.0 - gate)) * up


@_flushed
def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """heads: float32 [N, head_dim], i paired with i + head_dim / 2; cos, sin: [N, head_dim / 2]."""
    a, b = heads.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@_flushed
def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Attention of one row over the keys that it sees, which are at the positions from `first` on.

    query: float32 [heads, head_dim]; keys, values: [seen, kv_heads, head_dim], in the cache's format. Each block of 256
    positions gives its largest score, the sum of the exponentials (16 sums, added by halves), and the sum of their
    products with the values. With values in bf16 that sum has the order of bf16 weights, whose inputs are the block's
    positions; with others, key comes after key. Then each block is added to those before. Returns [heads, head_dim].
    """
    return joined(attention_parts(query, keys, values, first))


def attention_parts(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int) -> Iterator[Part]:
    """The blocks of `attention` before they are added up, with subnormal numbers as zero."""
    heads, head_dim = query.shape
    group = heads // keys.shape[1]
    scores = dot(query[:, None, :], keys.repeat_interleave(group, dim=1).transpose(0, 1)) * score_scale(head_dim)
    shared = values.repeat_interleave(group, dim=1).permute(1, 2, 0)  # [heads, head_dim, seen]
    for start in range(first // BLOCK * BLOCK, first + len(keys), BLOCK):
        span = range(max(start, first), min(start + BLOCK, first + len(keys)))
        of, offset = slice(span.start - first, span.stop - first), span.start - start
        top, weights, total = softmax(scores[:, of], offset)
        yield top, total, _weighed(weights, shared[..., of], offset)


def score_scale(head_dim: int) -> torch.Tensor:
    """What products of queries and keys are multiplied with."""
    return 1.0 / _root(torch.tensor(float(head_dim)))


def softmax(scores: torch.Tensor, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of scores [heads, n] of a block's positions from `offset` on: the largest, the exponentials, and their sum."""
    top = _largest(scores, offset)
    weights = _exp(scores - top[:, None])
    return top, weights, _sum(weights, offset)


def joined(parts: Iterable[Part]) -> torch.Tensor:
    """Blocks added up, one after the other: [heads, head_dim]."""
    state: Part | None = None
    for block in parts:
        state = block if state is None else _fold(state, block)
    assert state is not None
    return state[2] / state[1][:, None]


def _weighed(weights: torch.Tensor, values: torch.Tensor, offset: int) -> torch.Tensor:
    """weights: float32 [heads, n]; values: [heads, head_dim, n], of a block's positions from `offset` on."""
    if values.dtype == torch.bfloat16:
        lead = (offset % 32, 0)
        return dot_bf16(torch.nn.functional.pad(weights, lead)[:, None], torch.nn.functional.pad(values, lead))
    out = torch.zeros(values.shape[:-1])
    for i, value in enumerate(values.float().unbind(-1)):
        out = fused(weights[:, i, None], value, out)
    return out


def _fold(before: Part, block: Part) -> Part:
    top = torch.where(before[0] > block[0], before[0], block[0])
    old, fresh = _exp(before[0] - top), _exp(block[0] - top)
    return (
        top,
        fused(before[1], old, block[1] * fresh),
        fused(before[2], old[:, None], block[2] * fresh[:, None]),
    )


def _lanes(x: torch.Tensor, offset: int, fill: float) -> torch.Tensor:
    """[heads, n] as [heads, steps, 16], the first number in lane offset % 16."""
    lead = offset % 16
    x = torch.nn.functional.pad(x, (lead, -(lead + x.shape[-1]) % 16), value=fill)
    return x.view(len(x), -1, 16)


def _sum(x: torch.Tensor, offset: int) -> torch.Tensor:
    sums = torch.zeros(len(x), 16)
    for step in _lanes(x, offset, 0.0).unbind(1):
        sums = sums + step
    return halves(sums)


def _largest(x: torch.Tensor, offset: int) -> torch.Tensor:
    """The largest number. If a comparison meets a NaN, it gives its second operand, as x86's maximum does."""
    best = torch.full((len(x), 16), -torch.inf)
    for step in _lanes(x, offset, -torch.inf).unbind(1):
        best = torch.where(best > step, best, step)
    for size in (8, 4, 2, 1):
        low, high = best[:, :size], best[:, size : 2 * size]
        best = torch.where(low > high, low, high)
    return best[:, 0]


def choice(logits: Sequence[float]) -> int | None:
    """The index of the largest logit, the lowest on a tie; None if a logit is NaN."""
    if any(x != x for x in logits):
        return None
    return max(range(len(logits)), key=lambda i: (logits[i], -i))
