"""The arithmetic, and the choice of its implementation.

    native      C++, for each instruction set: a whole pass in one call, the same bits for any number of rows
    reference   PyTorch, operation by operation: defines the native bits; slow, for tests
    rowwise     PyTorch, without a native module: rows independent on the CPU, other bits than native
    gpu         Triton and CUDA's libraries, on a GPU: rows independent, other bits than either

The implementation of an operation is chosen once, when the operation is first used. `explain()` gives the choice and
its reason. Two environment variables control the choice:

    FORETOKEN_NATIVE   auto (default) | required | off
    FORETOKEN_ISA    force an instruction set: generic; neon, dotprod on ARM; avx2, avxvnni, avx512, avx512vnni,
                     avx512bf16, amx on x86
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from foretoken.errors import ContractError
from foretoken.kernels import choosing, native, totals
from foretoken.kernels.choosing import Floats, Noise, Warp

if TYPE_CHECKING:
    import torch

Argmax = Callable[["torch.Tensor"], "int | None"]
Ranked = tuple[list[int], list[float]]


def argmax(logits: torch.Tensor) -> int | None:
    """The index of the largest logit, float32 [V]: the lowest on a tie, None if any logit is NaN."""
    return _argmax(logits.device.type)(logits)


@cache
def _argmax(device: str) -> Argmax:
    module = native.module()
    if module is None or device != "cpu":
        return _argmax_torch
    isa = native.isa()
    return lambda logits: native.argmax(logits.contiguous(), isa)


def _argmax_torch(logits: torch.Tensor) -> int | None:
    if str(logits.dtype) != "torch.float32" or logits.ndim != 1 or len(logits) == 0:
        raise ContractError(f"argmax got {logits.dtype} {list(logits.shape)}; expected float32 [V], V > 0")
    if bool(logits.isnan().any()):
        return None
    return int((logits == logits.max()).nonzero()[0])


def rank(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> Ranked | None:
    """The `count` tokens with the largest warped and perturbed logits: see `foretoken.kernels.choosing.rank`."""
    return _rank()(logits, warp, noise, count)


@cache
def _rank() -> Callable[[Floats, Warp, Noise | None, int], Ranked | None]:
    if native.module() is None:
        return choosing.rank
    isa = native.isa()

    def rank(logits: Floats, warp: Warp, noise: Noise | None, count: int) -> Ranked | None:
        whole = logits if logits.flags.c_contiguous else np.ascontiguousarray(logits)
        return native.rank(whole, warp, noise, count, isa)

    return rank


def log_total(logits: Floats, temperature: float = 1.0) -> float:
    """The logarithm of the sum of exp(logit / temperature): see `foretoken.kernels.totals.log_total`. logits: float32
    [V]."""
    return _log_total()(logits, temperature)


@cache
def _log_total() -> Callable[[Floats, float], float]:
    if native.module() is None:
        return totals.log_total
    isa = native.isa()
    return lambda logits, temperature: native.log_total(np.ascontiguousarray(logits), temperature, isa)


def explain() -> str:
    """Which implementations run on this machine, and why: a few lines for people."""
    import torch

    from foretoken.kernels import rowwise

    single = rowwise.blocks_in_use().count(1)
    slow = f"; of 1 row for {single} shapes, whose rows this machine does not treat alike" if single else ""
    threads = f"{torch.get_num_threads()} threads"
    own = "" if rowwise.multiplies_bf16() else " (bf16: 1 row, as this processor does not multiply it)"
    pytorch = f"PyTorch {torch.__version__}, {threads}, linear layers in blocks of {rowwise.BLOCK} rows{own}{slow}"
    runs = f"native, {native.isa()}, {threads}" if native.module() is not None else pytorch
    return "\n".join([f"decoder   {runs}", f"native    {native.explain()}"])
