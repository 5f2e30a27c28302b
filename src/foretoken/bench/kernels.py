"""How near to the speed of memory the kernels run: `foretoken bench kernels`.

Weights rotate through a gigabyte, so that each is read from memory. A round measures the bandwidth beside every kernel,
and the share is that of the round: bandwidth is not constant on a machine that one shares.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch

from foretoken.bench.ceilings import Ceiling
from foretoken.errors import NativeError, SettingError, nearest
from foretoken.kernels import native
from foretoken.provenance import provenance

SHAPES = ((4096, 4096), (8192, 2048), (2048, 8192), (8192, 8192))  # outputs, inputs
ROWS = (1, 8, 16, 32)
FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Result:
    """One kernel at one size. m: outputs; k: inputs; n: rows; seconds: a product, the rows' packing included."""

    kernel: str
    level: str
    m: int
    k: int
    n: int
    seconds: float
    fraction_of_bandwidth: float
    gflops: float


def bench(
    *,
    threads: int | None = None,
    level: str | None = None,
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
        if name not in FORMATS:
            raise SettingError(f"there is no format {name!r}{nearest(name, FORMATS)}")
    level = native.level() if level is None else level
    native.level_number(level)  # refuses one that is unknown, or that this machine lacks
    threads = threads or torch.get_num_threads()
    origin = provenance()  # of what is running, whatever is committed until it ends
    ceiling = Ceiling(threads, level)
    cases = list(_cases(ceiling, formats, shapes, rows, level, threads))
    measured: dict[int, list[tuple[float, float]]] = {i: [] for i in range(len(cases))}
    for number in range(rounds):
        for i, case in enumerate(cases):
            bandwidth = ceiling.measure()
            measured[i].append((case.seconds(), bandwidth))
            progress((number * len(cases) + i + 1) / (rounds * len(cases)))
    results = [_result(case, measured[i]) for i, case in enumerate(cases)]
    every = [bandwidth for pairs in measured.values() for _, bandwidth in pairs]
    origin["machine"] |= {"threads": threads, "level": level}
    return {
        **origin,
        "read_bandwidth_gb_per_s": round(statistics.median(every) / 1e9, 2),
        "read_bandwidth_range_gb_per_s": [round(min(every) / 1e9, 2), round(max(every) / 1e9, 2)],
        "rounds": rounds,
        "results": [asdict(result) for result in results],
    }


@dataclass(frozen=True)
class _Case:
    """One kernel at one size, over weights that fill the memory."""

    kernel: str
    level: str
    weights: list[torch.Tensor]
    n: int
    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # rows, weight

    def seconds(self) -> float:
        x = torch.full((self.n, self.weights[0].shape[1]), 0.5)
        began = perf_counter()
        for weight in self.weights:
            self.run(x, weight)
        return (perf_counter() - began) / len(self.weights)


def _cases(
    ceiling: Ceiling,
    formats: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...],
    rows: tuple[int, ...],
    level: str,
    threads: int,
) -> Iterator[_Case]:
    def as_it_lies(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return native.linear(x, weight, None, level, threads)

    def repacked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return native.linear(x, weight, None, level, threads, repacked=True)

    for name in formats:
        for m, k in shapes:
            weights = _rotation(ceiling.memory(), FORMATS[name], m, k)
            for n in rows:
                yield _Case(f"linear_{name}", level, weights, n, as_it_lies)
                if name == "bf16" and native.repacks(level):
                    yield _Case("linear_bf16_repacked", level, weights, n, repacked)


def _rotation(memory: torch.Tensor, dtype: torch.dtype, m: int, k: int) -> list[torch.Tensor]:
    """As many matrices as the memory holds. They are alike: what they hold costs no kernel anything."""
    size = m * k * dtype.itemsize
    return [memory[i * size : (i + 1) * size].view(dtype).view(m, k) for i in range(memory.numel() // size)]


def _result(case: _Case, pairs: list[tuple[float, float]]) -> Result:
    m, k = case.weights[0].shape
    size = m * k * case.weights[0].itemsize
    seconds = statistics.median(seconds for seconds, _ in pairs)
    fraction = statistics.median(size / seconds / bandwidth for seconds, bandwidth in pairs)
    return Result(
        case.kernel, case.level, m, k, case.n, seconds, round(fraction, 3), round(2e-9 * m * k * case.n / seconds, 1)
    )
