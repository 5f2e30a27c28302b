"""How near to the speed of memory the kernels run: `foretoken bench kernels`.

Weights rotate through a gigabyte, so that each is read from memory. A round measures the bandwidth beside every kernel,
and the share is that of the round: bandwidth is not constant on a machine that one shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch

from foretoken.bench.ceilings import Ceiling
from foretoken.bench.turns import Timed, clocked, in_turn, memory_speed, some
from foretoken.common.provenance import provenance
from foretoken.decoder.homes.huge_pages import Kind, size_of, viewed
from foretoken.errors import NativeError, SettingError, nearest
from foretoken.formats import FORMATS as LOW_BIT
from foretoken.formats import Format, format_of
from foretoken.formats.table import TILE
from foretoken.formats.weight import QuantisedWeight, parts
from foretoken.kernels import native

SHAPES = ((4096, 4096), (8192, 2048), (2048, 8192), (8192, 8192))  # outputs, inputs
ROWS = (1, 2, 4, 8, 16, 32)
FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Weight = torch.Tensor | QuantisedWeight
_FILL = 0x43  # of every byte: a valid scale, zero point and code in every format, and a number in every type of float
_ROOF = (1024, 1 << 19, 32)  # inputs, bytes of weights a thread (half a core's second-level cache of 1 MiB), rows


def kernels_of(name: str, isa: str) -> dict[str, dict[str, Any]]:
    """The kernels that multiply a format, by name, with what `native.linear` must be told: a low-bit format has one for
    each kind of input."""
    if name in FLOATS:
        repacked = {f"linear_{name}_repacked": {"repacked": True}} if name == "bf16" and native.repacks(isa) else {}
        return {f"linear_{name}": {}, **repacked}
    inputs = ("int8", "bf16", "fp32") if name == "mxfp4" else ("int8", "bf16")
    return {f"linear_{name}_{kind}": {"inputs": kind} for kind in inputs}


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
    """The record that `foretoken bench kernels --json` writes. `progress` hears the share that is done."""
    if native.module() is None:
        raise NativeError(f"there are no kernels to measure: the native module is {native.explain()}")
    for name in formats:
        if name not in FLOATS:
            _low_bit(name)
    isa = native.isa() if isa is None else isa
    native.isa_number(isa)  # refuses one that is unknown, or that this machine lacks
    threads = threads or torch.get_num_threads()
    origin = provenance()  # of what is running, whatever is committed until it ends
    ceiling = Ceiling(threads, isa)
    ceiling.memory().fill_(_FILL)
    kernels = {kernel: (name, told) for name in formats for kernel, told in kernels_of(name, isa).items()}
    roofs = {kernel: _Roof.of(name, told, isa, threads) for kernel, (name, told) in kernels.items()}
    runs = {kernel: _runner(isa, threads, told) for kernel, (_, told) in kernels.items()}
    cases = [
        _Case(kernel, isa, weights, n, runs[kernel])
        for name in formats
        for m, k in shapes
        for weights in [_rotation(ceiling.memory(), name, m, k)]
        for n in rows
        for kernel in kernels_of(name, isa)
    ]

    def measure_roofs() -> None:
        for roof in roofs.values():
            roof.measure()

    seconds = {at: some(case.seconds) for at, case in enumerate(cases)}
    timed = in_turn(seconds, rounds, ceiling, progress=progress, between=measure_roofs)
    results = [case.result(timed[at]) for at, case in enumerate(cases)]
    origin["machine"] |= {"threads": threads, "isa": isa}
    return {
        **origin,
        **memory_speed(timed.values()),
        "rounds": rounds,
        "results": results,
        "roofs": [
            # one that a product from memory has gone beyond was measured while the machine did something else
            {"kernel": kernel, "gflops": max(roof.gflops, *(r["gflops"] for r in results if r["kernel"] == kernel))}
            for kernel, roof in roofs.items()
        ],
    }


def _low_bit(name: str) -> Format:
    try:
        return format_of(name)
    except SettingError:
        raise SettingError(f"there is no format {name!r}{nearest(name, [*FLOATS, *LOW_BIT])}") from None


@dataclass(frozen=True)
class _Case:
    """One kernel at one size, over weights that fill the memory."""

    kernel: str
    isa: str
    weights: list[Weight]
    n: int
    run: Callable[[torch.Tensor, Weight], torch.Tensor]  # rows, weight

    def seconds(self) -> float:
        """Of a product, with its rows' packing."""
        x = torch.full((self.n, self.weights[0].shape[1]), 0.5)

        def products() -> None:
            for weight in self.weights:
                self.run(x, weight)

        return clocked(products) / len(self.weights)

    def result(self, timed: Timed) -> dict[str, Any]:
        """As it stands in a record: m outputs, k inputs, n rows, the bytes of the weight."""
        (m, k), size, seconds = self.weights[0].shape, self.weights[0].nbytes, timed.median
        sizes = {"kernel": self.kernel, "isa": self.isa, "m": m, "k": k, "n": self.n, "bytes": size}
        gflops = round(2e-9 * m * k * self.n / seconds, 1)
        return {**sizes, "seconds": seconds, "fraction_of_bandwidth": timed.share(size), "gflops": gflops}


def _runner(isa: str, threads: int, options: dict[str, Any]) -> Callable[[torch.Tensor, Weight], torch.Tensor]:
    return lambda x, weight: native.linear(x, weight, None, isa, threads, **options)


def _kinds(name: str, m: int, k: int) -> dict[str, Kind]:
    """The tensors of a weight."""
    if name in FLOATS:
        return {"values": ((m, k), FLOATS[name])}
    return {part: (p.shape, p.dtype) for part, p in parts(_low_bit(name), m, k).items()}


def _rotation(memory: torch.Tensor, name: str, m: int, k: int) -> list[Weight]:
    """As many matrices as the memory holds. They are alike: what they hold costs no kernel anything, as long as it is
    valid."""
    kinds = _kinds(name, m, k)
    size = size_of(kinds)
    weights: list[Weight] = []
    for first in range(0, memory.numel() - size + 1, size):
        made = viewed(memory[first:], kinds)
        weights.append(made["values"] if name in FLOATS else QuantisedWeight(_low_bit(name), (m, k), **made))
    return weights


@dataclass
class _Roof:
    """What a kernel computes where memory does not hold it up: with a weight that stays in the cores' caches.

    A product with all of the weight, less one with a quarter of its outputs: what packing the rows and waking the
    threads take is in both. The least of each counts: a roof is what can be had.
    """

    weights: list[Weight]  # a quarter, and all of it
    run: Callable[[torch.Tensor, Weight], torch.Tensor]
    least: list[float]  # seconds

    @classmethod
    def of(cls, name: str, options: dict[str, Any], isa: str, threads: int) -> _Roof:
        k, size, _ = _ROOF
        a_tile = sum(prod(shape) * dtype.itemsize for shape, dtype in _kinds(name, TILE, k).values())
        quarter = max(size // a_tile // 4, 1) * threads * TILE  # outputs
        memory = torch.full((4 * quarter // TILE * a_tile + 4096,), _FILL, dtype=torch.uint8)
        memory = memory[-memory.data_ptr() % 64 :]
        weights = [_rotation(memory, name, m, k)[0] for m in (quarter, 4 * quarter)]
        return cls(weights, _runner(isa, threads, options), [float("inf")] * 2)

    def measure(self) -> None:
        """Some products more."""
        x = torch.full((_ROOF[2], _ROOF[0]), 0.5)
        for _ in range(50):
            took = [clocked(partial(self.run, x, weight)) for weight in self.weights]
            self.least = list(map(min, self.least, took))

    @property
    def gflops(self) -> float:
        outputs = [weight.shape[0] for weight in self.weights]
        return round(
            2e-9 * (outputs[1] - outputs[0]) * _ROOF[0] * _ROOF[2] / max(self.least[1] - self.least[0], 1e-9), 1
        )
