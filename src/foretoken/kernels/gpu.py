"""Arithmetic on a GPU in which a row's result depends on that row alone, bit for bit.

A linear layer with bf16, fp16 or fp32 weights is the GPU library's product, over blocks of a fixed number of rows
(`rowwise.block_of` tests for each shape that the library treats a block's rows alike). All else is kernels of our own
(`gpu_code`), which have the property by their construction. docs/lossless.md has more.

Rows are float32 [N, width] between operations, as in `rowwise`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from foretoken.errors import ModelError
from foretoken.formats import tiles
from foretoken.formats.table import TILE, Format
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import rowwise

NAME = "triton"  # of this arithmetic, in records
WIDENED = ("int3", "int2")  # formats whose codes have four bits here
_OLDEST = (8, 0)  # the first GPUs that multiply bf16
_BLOCK, _BLOCKS = 64, 2  # keys of a block, and blocks of a chunk
CHUNK = _BLOCK * _BLOCKS  # positions that one program attends to
_ALL = 1 << 30  # positions: more than any text has
_WORKSPACE = 64 << 20  # bytes that the sums of chunks may take
_ROWS, _OUTPUTS = 16, 64  # of a low-bit weight's product, in one program
_PROGRAMS = 1024  # into which such a product is divided, if it is large enough: they hide each other's waiting
_LEAST_GROUPS = 4  # that one of them adds up
_CODED_WARPS, _CODED_STAGES = 2, 2
_TOGETHER = 64  # rows whose parts are in memory at once
_SPREAD = 1024  # numbers that one program copies
_WIDE = 64  # inputs of int8 that a program takes together
_UNPACKED = 1 << 24  # codes that are unpacked together: more would take much memory on the way
SEGMENT = 20  # numbers that describe a text in `RowsOnDevice`


def why_not(device: torch.device) -> str | None:
    """Why these kernels cannot run on a device; None if they can."""
    if device.type != "cuda":
        return f"{device} is no GPU"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "PyTorch sees no NVIDIA GPU"
    if find_spec("triton") is None:
        return "Triton, which comes with PyTorch for GPUs on Linux, is not installed"
    found = torch.cuda.get_device_capability(device)
    if found < _OLDEST:
        return f"this GPU has compute capability {found[0]}.{found[1]}, and {_OLDEST[0]}.{_OLDEST[1]} is needed"
    return _why_not_compiled(device)


def runs_on(device: str) -> bool:
    """Whether these kernels can run on a device."""
    return why_not(torch.device(device)) is None


def on(device: torch.device) -> AbstractContextManager[object]:
    """Within it, kernels run on a device: Triton takes the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def telling_of_memory() -> Iterator[None]:
    """Within it, a GPU that has too little memory is told of in a ModelError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise ModelError(
            "the GPU has no memory left; with a bound such as --memory 6GiB (in Python memory=...) some of the model's "
            "layers stay in the machine's memory; if there is a bound already, give a lower one or a shorter context"
        ) from None


@cache
def _why_not_compiled(device: torch.device) -> str | None:
    """Why Triton cannot compile a small kernel and run it. It needs a C compiler, Python's headers, and a folder that
    it may write to."""
    number = torch.ones(1, device=device)
    try:
        with on(device):
            Arithmetic().silu_mul(number, number)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton's, the compiler's, or the system's
        said = str(error).strip().splitlines() or [type(error).__name__]
        return f"Triton cannot compile kernels: {said[-1][:200]}; install a C compiler and Python's headers"
    return None


@cache
def _code() -> Any:
    from foretoken.kernels import gpu_code  # needs Triton, and takes a second to import

    return gpu_code


@dataclass(frozen=True)
class PackedWeight:
    """A low-bit weight [outputs, inputs] as the kernels read it: tiles of 16 outputs, group by group.

    codes: [tiles, groups, 16, bytes]; codes of fewer than eight bits have four here. scales, zeros: [tiles, groups,
    16]; of int8, scales are [tiles * 16]. Where a format has no zero points, `zeros` are the scales again.
    """

    format: Format
    shape: tuple[int, int]
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and zero points."""
        return self.codes.nbytes + self.scales.nbytes + (self.zeros.nbytes if self.format.has_zeros else 0)


def bytes_of(format: Format, outputs: int, inputs: int) -> int:
    """The bytes that a packed weight takes."""
    outputs = -(-outputs // TILE) * TILE
    if format.name == "int8":
        return outputs * (-(-inputs // _WIDE) * _WIDE + 4)
    groups = -(-inputs // format.group)
    return outputs * groups * (format.group // 2 + (4 if format.has_zeros else 1))


def pack(weight: QuantisedWeight, device: torch.device) -> PackedWeight:
    """A low-bit weight for the kernels, on a device."""
    format, (_, inputs), count = weight.format, weight.shape, len(weight.codes)
    is_int8 = format.name == "int8"
    group = _WIDE if is_int8 else format.group
    groups, width = -(-inputs // group), group if is_int8 else group // 2
    scales = zeros = weight.scales.to(device)
    if format.has_zeros:
        scales, zeros = (each[:, :groups].contiguous() for each in scales.unbind(-1))
    elif not is_int8:
        scales = zeros = scales[:, :groups].contiguous()
    codes = torch.empty((count, groups, TILE, width), dtype=torch.uint8, device=device)
    step = max(_UNPACKED // (groups * group) // TILE, 1)
    for first in range(0, count, step):
        some = tiles.unpack(weight.codes[first : first + step].to(device), format.bits)[:, : groups * group]
        some = torch.nn.functional.pad(some, (0, groups * group - some.shape[1]))
        if not is_int8:
            low, high = some.view(len(some), groups, 2, width).unbind(2)
            some = low | high << 4
        codes[first : first + step] = some.view(-1, TILE, groups, width).transpose(1, 2)
    return PackedWeight(format, weight.shape, codes.view(torch.int8) if is_int8 else codes, scales, zeros)


@dataclass(frozen=True)
class RowsOnDevice:
    """What the kernels know of the rows of a pass.

    numbers: int64, one behind the other: of each row the token, the position, the number of its text, its slot (-1: a
    row that is not there) and where its path begins in `paths` (-1: it sees all slots up to its own); from `table` on,
    `SEGMENT` numbers for each text; from `paths` on, the paths: the slots that a row sees, its own last.

    A text's numbers: its committed positions; then, five times, where stretches of keys and values end and lie: first
    its slots (without an end), then up to four stretches of the prefix. A stretch is the address of the key and of the
    value that position 0 would have in layer 0 (slot 0 for the slots), and the bytes from one layer to the next.

    count: rows. last: no position is larger. aligned: all addresses are multiples of 16. dtype: of keys and values.
    """

    numbers: torch.Tensor
    count: int
    table: int
    paths: int
    last: int
    aligned: bool
    dtype: torch.dtype


class Heads(NamedTuple):
    """The shape of an attention layer."""

    heads: int
    kv_heads: int
    width: int
    window: int | None


class Arithmetic:
    """The operations, on one GPU."""

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None  # rows, and how a product takes them

    def linear(self, x: torch.Tensor, weight: torch.Tensor | PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
        """x: float32 [N, inputs]; weight: [outputs, inputs]; bias: [outputs]. Returns float32 [N, outputs]."""
        if isinstance(weight, PackedWeight):
            return _coded(x, weight, bias)
        block, bias = rowwise.block_of(weight, bias), rowwise.rounded(bias, weight)
        padded = self._padded(x, weight.dtype, block)
        out = torch.empty((len(padded), weight.shape[0]), dtype=weight.dtype, device=x.device)
        for start in range(0, len(padded), block):
            rows, to = padded[start : start + block], out[start : start + block]
            if block == 1:  # single rows may begin anywhere, and the library looks at that
                to.copy_(rowwise.product(rows.clone(), weight, bias, torch.empty_like(to)))
            else:
                rowwise.product(rows, weight, bias, to)
        return out[: len(x)].float()

    def forget(self) -> None:
        """Forget the rows of the last product."""
        self._last = None

    def _padded(self, x: torch.Tensor, dtype: torch.dtype, block: int) -> torch.Tensor:
        """Rows in a weight's type, zeros behind them up to whole blocks. Several weights read the same rows."""
        count = -(-len(x) // block) * block
        if self._last is not None:
            rows, padded = self._last
            if rows is x and padded.dtype == dtype and len(padded) == count:
                return padded
        x = x.contiguous()
        padded = torch.zeros((count, x.shape[1]), dtype=dtype, device=x.device)
        _code().spread[(len(x), -(-x.shape[1] // _SPREAD))](x, padded, x.shape[1], SIZE=_SPREAD)
        self._last = x, padded
        return padded

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x: float32 [..., width]. Each vector along the last axis is normed separately."""
        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        if x.numel():
            size = _power(width)
            _code().rms_norm[(x.numel() // width,)](x, weight, out, width, eps, SIZE=size, num_warps=_warps(size))
        return out

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, float32 [N, width]."""
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        if gate.numel():
            _code().silu_mul[(-(-gate.numel() // _SPREAD),)](gate, up, out, gate.numel(), SIZE=_SPREAD)
        return out

    def place(
        self,
        states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        rows: RowsOnDevice,
        turns: tuple[torch.Tensor, torch.Tensor],
        layer: int,
        shape: Heads,
    ) -> torch.Tensor:
        """Rotate queries and keys, and write keys and values to the rows' slots. states: queries, keys and values,
        float32 [N, heads * width] each. turns: cosines and sines by position, float32 [positions, width / 2]. Returns
        the queries."""
        query, key, value = states
        out, half = torch.empty_like(query), shape.width // 2
        _code().place[(len(query), shape.heads + 2 * shape.kv_heads)](
            *(query, key, value, out, rows.numbers, *turns, rows.count, rows.table, layer),
            *(shape.heads, shape.kv_heads, half, _row_bytes(rows, shape)),
            SIZE=_power(half),
            WHOLE=_power(shape.width),
            DTYPE=_type_of(rows.dtype),
            num_warps=1,
        )
        return out

    def attention(self, query: torch.Tensor, rows: RowsOnDevice, layer: int, shape: Heads) -> torch.Tensor:
        """Attention of all rows, each over exactly the keys that it sees. query: float32 [N, heads * width]."""
        heads, width, chunks = shape.heads, shape.width, rows.last // CHUNK + 1
        out, window = torch.empty_like(query), _ALL if shape.window is None else shape.window
        step = max(1, _WORKSPACE // (4 * heads * chunks * (width + 2)))
        for first in range(0, len(query), step):
            count = min(step, len(query) - first)
            sums = torch.empty((count, heads, chunks, width), dtype=torch.float32, device=query.device)
            tops, weights = torch.empty((2, count, heads, chunks), dtype=torch.float32, device=query.device)
            numbers = rows.numbers[first:]  # the rows from there on; what lies behind them begins as much earlier
            _code().attend[(count, heads, chunks)](
                *(query[first:], numbers, sums, tops, weights, rows.count, rows.table - first, rows.paths - first),
                *(layer, window, heads, heads // shape.kv_heads, width, _row_bytes(rows, shape), width**-0.5, chunks),
                SIZE=_power(width),
                BLOCK=_BLOCK,
                BLOCKS=_BLOCKS,
                DTYPE=_type_of(rows.dtype),
                ITEM=rows.dtype.itemsize,
                ALIGNED=rows.aligned,
            )
            _code().join[(count, heads)](
                *(sums, tops, weights, numbers, out[first:], rows.count, window, heads, width, chunks),
                SIZE=_power(width),
                CHUNK=CHUNK,
                num_warps=1,
            )
        return out


def _coded(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    x, (outputs, inputs) = x.contiguous(), weight.shape
    code, name, groups = _code(), weight.format.name, weight.codes.shape[1]
    across = -(-outputs // _OUTPUTS)
    each = max(_LEAST_GROUPS, -(-groups * across // _PROGRAMS))  # of a part of the sum: it depends on the shape alone
    count = -(-groups // each)
    out = torch.empty((len(x), outputs), dtype=torch.float32, device=x.device)
    for first in range(0, len(x), _TOGETHER):
        some = x[first : first + _TOGETHER]
        parts = torch.empty((count, len(some), outputs), dtype=torch.float32, device=x.device)
        code.coded[(across, -(-len(some) // _ROWS), count)](
            *(some, weight.codes, weight.scales, weight.zeros, parts, len(some), outputs, inputs, groups, each),
            KIND={"int8": code.INT8, "mxfp4": code.MXFP4}.get(name, code.INT4),
            GROUP=_WIDE if name == "int8" else weight.format.group,
            ROWS=_ROWS,
            OUTPUTS=_OUTPUTS,
            num_warps=_CODED_WARPS,
            num_stages=_CODED_STAGES,
        )
        code.total[(len(some), -(-outputs // _SPREAD))](
            *(parts, parts if bias is None else bias, out[first:], len(some), outputs, count),
            SIZE=_SPREAD,
            BIASED=bias is not None,
        )
    return out


def _row_bytes(rows: RowsOnDevice, shape: Heads) -> int:
    return shape.kv_heads * shape.width * rows.dtype.itemsize


def _type_of(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


def _power(width: int) -> int:
    """The least power of two that is not less."""
    return 1 << (width - 1).bit_length()


def _warps(size: int) -> int:
    """Warps for a program over a vector."""
    return max(1, min(size // 512, 16))
