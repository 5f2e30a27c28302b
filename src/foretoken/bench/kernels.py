"""How close to the speed of memory the kernels run: `foretoken bench kernels`.

Weights rotate through a gigabyte, so that each is read from memory. Every round measures the bandwidth beside each
kernel, and a kernel's share is of that bandwidth, because bandwidth is not constant on a shared machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from foretoken.bench.ceilings import Ceiling
from foretoken.bench.turns import Timed, in_turn, memory_speed, some
from foretoken.common.provenance import provenance
from foretoken.decoder.homes.huge_pages import Kind, size_of, viewed
from foretoken.errors import NativeError, SettingError, nearest
from foretoken.formats import FORMATS as LOW_BIT
from foretoken.formats import Format, format_of
from foretoken.formats.table import TILE
from foretoken.formats.weight import QuantisedWeight, parts
from foretoken.kernels import native
from foretoken.prices.measuring import clocked

SHAPES = ((4096, 4096), (8192, 2048), (2048, 8192), (8192, 8192))  # outputs, inputs
ROWS = (1, 2, 4, 8, 16, 32)
FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Weight = torch.Tensor | QuantisedWeight
_FILL = 0x43  # every byte: a valid scale, zero point and code in every format, and a number in every type of float
_ROOF = (1024, 1 << 19, 32)  # inputs, bytes of weights a thread (half a core's second-level cache of 1 MiB), rows


def bench(
    *,
    threads: int | None = None,
    isa: str | None = None,
    formats: tuple[str, ...] = ("bf16",),
    rounds: int = 5,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    rows: tuple[int, ...] = ROWS,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Any]:
    """The record that `foretoken bench kernels --json` writes. `progress` is called with the share that is done."""
    if native.module() is None:
        raise NativeError(f"there are no kernels to measure: the native module is {native.explain()}")
    for name in formats:
        if name not in FLOATS:
            _low_bit(name)
    isa = native.isa() if isa is None else isa
    native.isa_number(isa)  # refuses an instruction set that is unknown or that this machine lacks
    threads = threads or torch.get_num_threads()
    origin = provenance()  # of the running code, whatever is committed meanwhile
    ceiling = Ceiling(threads, isa)
    ceiling.memory.fill_(_FILL)
    kernels = {name: list(_kernels(name, isa, threads)) for name in formats}
    cases = [
        _Case(kernel, weights, n)
        for name in formats
        for m, k in shapes
        for weights in [_rotation(ceiling.memory, name, m, k)]
        for n in rows
        for kernel in kernels[name]
    ]

    def measure_roofs() -> tuple[float, ...]:
        for kernel in itertools.chain(*kernels.values()):
            kernel.measure_roof()
        return ()

    runs = {at: some(case.seconds) for at, case in enumerate(cases)}
    timed = in_turn({-1: measure_roofs, **runs}, rounds, ceiling, progress)
    results = [case.result(timed[at]) for at, case in enumerate(cases)]
    origin["machine"] |= {"threads": threads, "isa": isa}
    return {
        **origin,
        **memory_speed(timed.values()),
        "rounds": rounds,
        "results": results,
        "roofs": [
            # a roof below a product from memory was measured while something else ran
            {"kernel": each.name, "gflops": max(each.roof, *(r["gflops"] for r in results if r["kernel"] == each.name))}
            for each in itertools.chain(*kernels.values())
        ],
    }


@dataclass(eq=False)
class _Kernel:
    """A kernel that multiplies rows by weights of a format. told: its arguments to `native.linear`.

    The kernel's roof is its speed where memory does not limit it, with a weight that stays in the cores' caches. The
    roof's time is a product with all of the weight minus a product with a quarter of its outputs: packing the rows and
    waking the threads are in both. The least time of each counts, because a roof is the best that can be reached.
    """

    name: str
    format: str
    isa: str
    threads: int
    told: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        k, size, _ = _ROOF
        a_tile = sum(prod(shape) * dtype.itemsize for shape, dtype in _kinds(self.format, TILE, k).values())
        quarter = max(size // a_tile // 4, 1) * self.threads * TILE  # outputs
        memory = torch.full((4 * quarter // TILE * a_tile + 4096,), _FILL, dtype=torch.uint8)
        memory = memory[-memory.data_ptr() % 64 :]
        self._cached = [_rotation(memory, self.format, m, k)[0] for m in (quarter, 4 * quarter)]
        self._least = [float("inf")] * 2  # seconds with a quarter of the weight, and with all of it

    def seconds(self, x: torch.Tensor, *weights: Weight) -> float:
        """Seconds of the products with all given weights, packing of the rows included."""

        def products() -> None:
            for weight in weights:
                native.linear(x, weight, None, self.isa, self.threads, **self.told)

        return clocked(products)

    def measure_roof(self) -> None:
        """Time some more products for the roof."""
        x = torch.full((_ROOF[2], _ROOF[0]), 0.5)
        for _ in range(50):
            self._least = [min(least, self.seconds(x, w)) for least, w in zip(self._least, self._cached, strict=True)]

    @property
    def roof(self) -> float:
        """Billions of operations per second."""
        quarter, whole = (weight.shape[0] for weight in self._cached)
        seconds = max(self._least[1] - self._least[0], 1e-9)
        return round(2e-9 * (whole - quarter) * _ROOF[0] * _ROOF[2] / seconds, 1)


def _kernels(name: str, isa: str, threads: int) -> Iterator[_Kernel]:
    """The kernels of a format; a low-bit format has one for each kind of input."""
    if name in FLOATS:
        yield _Kernel(f"linear_{name}", name, isa, threads)
        if name == "bf16" and native.repacks(isa):
            yield _Kernel(f"linear_{name}_repacked", name, isa, threads, {"repacked": True})
        return
    for kind in ("int8", "bf16", "fp32") if name == "mxfp4" else ("int8", "bf16"):
        yield _Kernel(f"linear_{name}_{kind}", name, isa, threads, {"inputs": kind})


def _low_bit(name: str) -> Format:
    try:
        return format_of(name)
    except SettingError:
        raise SettingError(f"there is no format {name!r}{nearest(name, [*FLOATS, *LOW_BIT])}") from None


@dataclass(frozen=True)
class _Case:
    """One kernel at one size, over weights that fill the memory."""

    kernel: _Kernel
    weights: list[Weight]
    n: int

    def seconds(self) -> float:
        """Seconds of one product."""
        x = torch.full((self.n, self.weights[0].shape[1]), 0.5)
        return self.kernel.seconds(x, *self.weights) / len(self.weights)

    def result(self, timed: Timed) -> dict[str, Any]:
        """The case in a record: m outputs, k inputs, n rows, the bytes of the weight."""
        (m, k), size, seconds = self.weights[0].shape, self.weights[0].nbytes, timed.median
        sizes = {"kernel": self.kernel.name, "isa": self.kernel.isa, "m": m, "k": k, "n": self.n, "bytes": size}
        gflops = round(2e-9 * m * k * self.n / seconds, 1)
        return {**sizes, "seconds": seconds, "fraction_of_bandwidth": timed.share(size), "gflops": gflops}


def _kinds(name: str, m: int, k: int) -> dict[str, Kind]:
    """The shapes and dtypes of a weight's tensors."""
    if name in FLOATS:
        return {"values": ((m, k), FLOATS[name])}
    return {part: (p.shape, p.dtype) for part, p in parts(_low_bit(name), m, k).items()}


def _rotation(memory: torch.Tensor, name: str, m: int, k: int) -> list[Weight]:
    """As many matrices as the memory holds, all alike: values that are valid do not affect a kernel's speed."""
    kinds = _kinds(name, m, k)
    size = size_of(kinds)
    weights: list[Weight] = []
    for first in range(0, memory.numel() - size + 1, size):
        made = viewed(memory[first:], kinds)
        weights.append(made["values"] if name in FLOATS else QuantisedWeight(_low_bit(name), (m, k), **made))
    return weights
