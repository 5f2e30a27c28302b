"""PyTorch arithmetic in which a row's result depends on that row alone, bit for bit.

docs/lossless.md explains why this is needed, and why each function here has the property. In short: A linear layer runs
over blocks of a fixed number of rows, padded with zeros, because PyTorch then treats every row of a block alike.
Operations that reduce or exponentiate run on one row at a time. Additions, multiplications, divisions and square roots
are always correctly rounded, so they may run over all rows at once.

Rows are float32 [N, width] between operations. A linear layer rounds rows and result to the weight's type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

BLOCK = 16  # rows; up to here a linear layer takes as long as for one row: the time goes into reading weights
_MULTIPLY_BF16 = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # PyTorch has no public names for these
GPU_BLOCK = 64  # the same on a GPU


@contextmanager
def pinned_threads(threads: int) -> Iterator[None]:
    """Run with a given number of PyTorch threads: the bits of a matrix product may depend on this number."""
    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x: float32 [N, inputs]; weight: [outputs, inputs], any float type; bias: [outputs], rounded to the weight's type.
    Returns float32 [N, outputs]."""
    block, bias = block_of(weight, bias), rounded(bias, weight)
    out = torch.empty((len(x), weight.shape[0]), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), block):
        rows = x[start : start + block]
        padded = torch.zeros((block, x.shape[1]), dtype=weight.dtype, device=x.device)
        padded[: len(rows)] = rows
        out[start : start + block] = product(padded, weight, bias)[: len(rows)]
    return out


def linear_batched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`linear` over all rows at once: faster if more rows take longer, in an order that may depend on their number."""
    return product(x.to(weight.dtype), weight, rounded(bias, weight)).float()


def product(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Rows [N, inputs] times a weight [outputs, inputs] of the same type, in one call of the library."""
    if out is None:
        return functional.linear(rows, weight, bias)
    return torch.mm(rows, weight.t(), out=out) if bias is None else torch.addmm(bias, rows, weight.t(), out=out)


def rounded(bias: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor | None:
    """The bias in the weight's type, which may differ: a low-bit weight's values are bf16, biases have the model's."""
    return None if bias is None else bias.to(weight.dtype)


def multiplies_bf16() -> bool:
    """Whether the processor multiplies bf16. Without instructions for it PyTorch makes float32 of it, number by number:
    with AVX2, a product of 16 rows took 18 times as long as one of a single row (LOG, 26 November 2026)."""
    return any(getattr(torch.cpu, name, lambda: False)() for name in _MULTIPLY_BF16)


def block_of(weight: torch.Tensor, bias: torch.Tensor | None) -> int:
    """The number of rows in a block of this layer: BLOCK, on a GPU GPU_BLOCK, or 1 if this machine does not treat a
    block's rows alike, or does not multiply this type.

    No matrix library promises to treat rows alike, so each shape is tested once. (The test is needed: MKL's float32
    product with 2 to 11 outputs does not treat rows alike if the number of inputs is no multiple of 4.)
    """
    on_cpu = weight.device.type == "cpu"
    if on_cpu and weight.dtype == torch.bfloat16 and not multiplies_bf16():
        return 1
    # a mapped weight may be unaligned, and then get a different kernel
    place = weight.data_ptr() % _line(weight)
    threads = torch.get_num_threads() if on_cpu else 0
    key = (tuple(weight.shape), weight.dtype, weight.device, place, bias is not None, threads)
    if key not in _blocks:
        block = BLOCK if on_cpu else GPU_BLOCK
        _blocks[key] = block if _treats_rows_alike(weight, bias, block) else 1
    return _blocks[key]


def blocks_in_use() -> list[int]:
    """The number of rows in a block, for each shape that was tested so far in this process."""
    return list(_blocks.values())


_blocks: dict[tuple[object, ...], int] = {}  # facts about the machine, not about a model
_LINE = 64  # bytes
_GPU_LINE = 256  # bytes
_PERIOD = 65_537  # random numbers, which are repeated: a prime, so that no two rows of a weight are the same
_LARGE = 16_000_000  # numbers


def _treats_rows_alike(weight: torch.Tensor, bias: torch.Tensor | None, block: int) -> bool:
    """Whether a block's rows keep their results, bit for bit, when they move to other places in the block.

    The test uses random weights of the same shape, type and alignment, because a model's weights may hide a difference
    (zeros do). A large weight is tested itself, because a second one might not fit into memory.
    """
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(_PERIOD, generator=generator).to(weight)
    if weight.numel() < _LARGE:
        weight = _like(weight, numbers)
    bias = None if bias is None else numbers.repeat(-(-len(bias) // _PERIOD))[: len(bias)]
    rows = torch.randn((block, weight.shape[1]), generator=generator).to(weight)

    def made(rows: torch.Tensor) -> torch.Tensor:
        return product(rows, weight, bias, None if rows.device.type == "cpu" else rows.new_empty(block, len(weight)))

    still = made(rows)
    # with few outputs rows may agree by chance, so all moves are tried; a large weight is slow, so three are
    moves = range(1, block) if weight.numel() < 1_000_000 else (1, 5, block - 1)
    return all(torch.equal(made(rows.roll(move, 0)), still.roll(move, 0)) for move in moves)


def _line(weight: torch.Tensor) -> int:
    """Bytes: libraries look at no larger multiple of which a weight's address is one."""
    return _LINE if weight.device.type == "cpu" else _GPU_LINE


def _like(weight: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The numbers, repeated, as a tensor with the weight's shape, its type and its offset in a cache line."""
    size = weight.numel() * weight.element_size()
    line = _line(weight)
    memory = torch.empty(size + line, dtype=torch.uint8, device=weight.device)
    start = (weight.data_ptr() - memory.data_ptr()) % line // weight.element_size() * weight.element_size()
    like = memory[start : start + size].view(weight.dtype)
    like.copy_(numbers.repeat(-(-weight.numel() // _PERIOD))[: weight.numel()])
    return like.view(weight.shape)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: float32 [..., width]. Each vector along the last axis is normed separately."""
    vectors = (x * x).flatten(0, -2)
    means = torch.stack([vector.mean() for vector in vectors.unbind(0)])
    return x / (means.view(*x.shape[:-1], 1) + eps).sqrt() * weight.float()


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, float32 [N, width]."""
    return torch.stack([functional.silu(row) for row in gate.unbind(0)]) * up


def attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one row over the keys that it sees, in the order of positions.

    query: float32 [heads, head_dim]; keys, values: float32 [seen, kv_heads, head_dim]. Returns [heads, head_dim].
    """
    heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.view(kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    weights = torch.softmax(grouped @ keys.permute(1, 2, 0), dim=-1)
    return (weights @ values.transpose(0, 1)).reshape(heads, head_dim)
