"""The native module: whether it is there, which instruction sets it may use, and thin checked calls into it.

Each call first checks its arguments (`foretoken.kernels.refusals`), because the kernels take addresses and sizes. A
whole pass goes through a plan (`foretoken.decoder.native_pass`), not through these single operations.
"""

from __future__ import annotations

import importlib
import os
import platform
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from foretoken.errors import ContractError, NativeError, nearest
from foretoken.kernels import refusals
from foretoken.kernels.choosing import Floats, Noise, Warp

if TYPE_CHECKING:
    import torch

    from foretoken.formats.weight import QuantisedWeight

_ARM, _X86 = ("neon", "dotprod"), ("avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx")
_OF_THIS = {"aarch64": _ARM, "arm64": _ARM, "x86_64": _X86, "amd64": _X86}.get(platform.machine().lower(), ())
ISAS = ("generic", *_OF_THIS)  # of this kind of processor, from slow to fast
# for tests of instruction sets that a machine lacks, never chosen automatically: AMX's arithmetic in plain C++, and
# avxvnni with AVX-512's form of its instruction
EMULATED, TWIN = "amx-emulated", "avxvnni-twin"
_NUMBERS = {name: number for number, name in enumerate(("generic", *_ARM, *_X86, EMULATED, TWIN))}
FORMATS = {name: number for number, name in enumerate(refusals.FLOATS)}  # by the name of a type
CODED = {"mxfp4": 3, "int8": 4, "int4": 5, "int3": 6, "int2": 7}  # by the name of a low-bit format
# what rows are rounded to for products with low-bit weights; fastest: int8, or bf16 where mxfp4 meets so many rows that
# the instruction set is faster with it
INPUTS = {"bf16": 0, "int8": 1, "fp32": 2, "fastest": 3}


@cache
def module() -> ModuleType | None:
    """The native module, or None where it was not built or is switched off."""
    wanted = os.environ.get("FORETOKEN_NATIVE") or "auto"
    if wanted not in ("auto", "required", "off"):
        raise NativeError(f"FORETOKEN_NATIVE is {wanted!r}; expected auto, required or off")
    if wanted == "off":
        return None
    try:
        return importlib.import_module("foretoken._native")
    except ImportError as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == "foretoken._native"):
            # the module is there: going on without it would hide the error
            raise NativeError(
                f"the native module does not load ({error}); install Foretoken again, or set FORETOKEN_NATIVE=off"
            ) from error
        if wanted == "required":
            raise NativeError(
                "FORETOKEN_NATIVE=required, but the native module is not built; install a C++ compiler, then "
                "install Foretoken again"
            ) from None
        return None


def supported() -> list[str]:
    """The instruction sets that this machine can run, from slow to fast; empty without the native module."""
    native = module()
    return [] if native is None else [name for name in ISAS if not native.why_not(_NUMBERS[name])]


def lacking() -> dict[str, str]:
    """The instruction sets that this machine cannot run, and why not."""
    native = module()
    return {} if native is None else {name: why for name in ISAS if (why := native.why_not(_NUMBERS[name]))}


def testable() -> list[str]:
    """The instruction sets that can be tested here: those that this machine can run, and emulations of others."""
    native = module()
    return [] if native is None else [name for name, number in _NUMBERS.items() if not native.why_not(number)]


@cache
def isa() -> str:
    """The instruction set in use: the highest that this machine has, or the one that FORETOKEN_ISA forces."""
    native = _present()
    forced = forced_isa()
    if forced is None:
        # from the fastest on: each that is asked about is checked first, which takes some 20 ms
        return next(name for name in reversed(ISAS) if not native.why_not(_NUMBERS[name]))
    if forced not in _NUMBERS:
        raise NativeError(f"{_asked()} is {forced!r}{nearest(forced, supported())}")
    reason = native.why_not(_NUMBERS[forced])
    if reason:
        raise NativeError(f"{_asked()} is {forced}, but {reason}; it has {', '.join(supported())}")
    return forced


def forced_isa() -> str | None:
    """The instruction set that FORETOKEN_ISA forces, or its older name FORETOKEN_LEVEL; None if neither is set."""
    return os.environ.get(_asked()) or None


def _asked() -> str:
    """The environment variable that forces an instruction set."""
    return "FORETOKEN_ISA" if os.environ.get("FORETOKEN_ISA") else "FORETOKEN_LEVEL"


def isa_number(name: str) -> int:
    """The native module's number of an instruction set. Raises NativeError if this machine lacks it."""
    if name not in _NUMBERS:
        raise NativeError(f"there is no instruction set {name!r}{nearest(name, _NUMBERS)}")
    reason = _present().why_not(_NUMBERS[name])
    if reason:
        raise NativeError(f"instruction set {name} was asked for, but {reason}; it has {', '.join(supported())}")
    return _NUMBERS[name]


def explain() -> str:
    """Whether the native module runs and with which instruction set, and if not, why not."""
    native = module()
    if native is not None:
        forced = f", forced by {_asked()}" if forced_isa() else ""
        lacks = [f"not {name}: {why}" for name, why in lacking().items()]
        return f"{isa()}{forced} (this machine has {'; '.join([', '.join(supported()), *lacks])})"
    if os.environ.get("FORETOKEN_NATIVE") == "off":
        return "off, by FORETOKEN_NATIVE"
    return "not built: installed without a C++ compiler, or with FORETOKEN_NATIVE=off; everything works, in PyTorch"


def argmax(logits: torch.Tensor, isa: str) -> int | None:
    """See `foretoken.kernels.argmax`. logits: float32 [V], on the CPU."""
    refusals.expect_logits(logits)
    index = int(_present().argmax(_NUMBERS[isa], logits.data_ptr(), len(logits)))
    return None if index < 0 else index


def rank(logits: Floats, warp: Warp, noise: Noise | None, count: int, isa: str) -> tuple[list[int], list[float]] | None:
    """See `foretoken.kernels.choosing.rank`: the same bits. logits: float32 [V], contiguous."""
    refusals.expect_ranking(logits, noise, count)
    if len(logits) == 0:
        return None
    drawn = (0, 0, 0, 0) if noise is None else (noise.seed, noise.completion, noise.step, noise.stream)
    address = logits.__array_interface__["data"][0]
    ranked: tuple[list[int], list[float]] | None = _present().rank(
        _NUMBERS[isa],
        address,
        len(logits),
        warp.temperature,
        warp.top_k,
        warp.top_p,
        warp.min_p,
        count,
        noise is not None,
        *drawn,
    )
    return ranked


def log_total(logits: Floats, temperature: float, isa: str) -> float:
    """See `foretoken.kernels.totals.log_total`. logits: float32 [V], contiguous."""
    refusals.expect_totalling(logits, temperature)
    address = logits.__array_interface__["data"][0]
    return float(_present().log_total(_NUMBERS[isa], address, len(logits), temperature))


def linear(
    x: torch.Tensor,
    weight: torch.Tensor | QuantisedWeight,
    bias: torch.Tensor | None,
    isa: str,
    threads: int = 1,
    *,
    repacked: bool = False,
    inputs: str = "bf16",
) -> torch.Tensor:
    """x: float32 [N, K]; weight: bf16, fp16 or fp32 [M, K], or a valid low-bit weight; bias: float32 [M]. Returns
    float32 [N, M].

    repacked: whether the weight is in the instruction set's own layout (see `repack`). inputs: the type that rows are
    rounded to before they are multiplied with a low-bit weight: bf16 (the sums are those of the weight's bf16 values),
    int8, or, with mxfp4, fp32 (no rounding). `kernels/coded.py` defines the sums with the last two. fastest: int8, or
    with mxfp4 and as many rows as AMX is better at, bf16.
    """
    import torch

    refusals.expect_linear(x, weight, bias, threads)
    out = torch.empty((len(x), weight.shape[0]), dtype=torch.float32)
    if repacked:
        assert isinstance(weight, torch.Tensor)
        _expect_repackable(weight, isa)
    matrix = numbers(weight, 0 if bias is None else bias.data_ptr(), repacked=repacked, inputs=inputs)
    if out.numel():
        _present().linear(_NUMBERS[isa], threads, x.data_ptr(), len(x), matrix, out.data_ptr())
    return out


def numbers(
    weight: torch.Tensor | QuantisedWeight, bias: int = 0, *, repacked: bool = False, inputs: str = "bf16"
) -> list[int]:
    """The numbers that describe a linear layer to the native module. bias: the address of float32 [M], or 0.

    The weight must stay in place for as long as the numbers are used.
    """
    import torch

    if isinstance(weight, torch.Tensor):
        return [weight.data_ptr(), *weight.shape, bias, FORMATS[str(weight.dtype)], int(repacked), 0, 0, 0]
    refusals.expect_low_bit(weight, inputs)
    kind, codes, scales = CODED[weight.format.name], weight.codes.data_ptr(), weight.scales.data_ptr()
    return [codes, *weight.shape, bias, kind, 0, INPUTS[inputs], scales, weight.format.group]


def repacks(isa: str) -> bool:
    """Whether an instruction set has a layout of its own for bf16 weights that are copied. The sums are the same."""
    return bool(_present().repacks(_NUMBERS[isa]))


def can_repack(weight: torch.Tensor, isa: str) -> bool:
    """Whether a weight can be put into that layout in place: it needs whole blocks of 16 outputs by 32 inputs."""
    outputs, inputs = weight.shape
    whole = outputs % 16 == 0 and inputs % 32 == 0 and weight.data_ptr() % 64 == 0  # avx2 reads aligned registers
    return str(weight.dtype) == "torch.bfloat16" and whole and repacks(isa)


def repack(weight: torch.Tensor, isa: str, threads: int = 1) -> None:
    """Put a bf16 weight [M, K] into the instruction set's own layout, in place."""
    refusals.expect_floats("weight", weight, ("M", "K"))
    _expect_repackable(weight, isa)
    _present().repack(_NUMBERS[isa], threads, weight.data_ptr(), *weight.shape)


def _expect_repackable(weight: torch.Tensor, isa: str) -> None:
    if not can_repack(weight, isa):
        raise ContractError(
            f"a weight of {weight.dtype} {list(weight.shape)} has no layout of its own for {isa}; expected bf16 "
            "from a multiple of 64 bytes on, outputs a multiple of 16 and inputs of 32, and instructions that have one"
        )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, isa: str) -> torch.Tensor:
    """x: float32 [N, width]; weight: float32 [width]."""
    import torch

    refusals.expect_norm(x, weight)
    out = torch.empty_like(x)
    _present().norm(_NUMBERS[isa], x.data_ptr(), weight.data_ptr(), eps, *x.shape, out.data_ptr())
    return out


def silu_mul(gate: torch.Tensor, up: torch.Tensor, isa: str) -> torch.Tensor:
    """silu(gate) * up, float32 [n]."""
    import torch

    refusals.expect_gate(gate, up)
    out = torch.empty_like(gate)
    _present().silu_mul(_NUMBERS[isa], gate.data_ptr(), up.data_ptr(), len(gate), out.data_ptr())
    return out


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, isa: str) -> torch.Tensor:
    """heads: float32 [N, head_dim]; cos, sin: float32 [N, head_dim / 2]."""
    refusals.expect_halves(heads, cos, sin)
    import torch

    out = torch.from_numpy(heads.detach().numpy().copy())  # PyTorch would copy on threads that a forked child lacks
    _present().rotate(_NUMBERS[isa], out.data_ptr(), cos.data_ptr(), sin.data_ptr(), len(heads), cos.shape[1])
    return out


def round_to(x: torch.Tensor, dtype: torch.dtype, isa: str) -> torch.Tensor:
    """float32 [n], rounded to a type, to the nearest, ties to even, as a cache stores keys and values."""
    import torch

    refusals.expect_rounding(x, dtype)
    out = torch.empty(len(x), dtype=dtype)
    _present().store(_NUMBERS[isa], FORMATS[str(dtype)], x.data_ptr(), len(x), out.data_ptr())
    return out


def widen(x: torch.Tensor, isa: str) -> torch.Tensor:
    """Numbers [n] of bf16, fp16 or fp32 as float32, as embeddings are read."""
    import torch

    refusals.expect_floats("x", x, ("n",))
    out = torch.empty(len(x), dtype=torch.float32)
    _present().load(_NUMBERS[isa], FORMATS[str(x.dtype)], x.data_ptr(), len(x), out.data_ptr())
    return out


def code_places(keys: torch.Tensor, values: torch.Tensor, isa: str, threads: int = 1) -> torch.Tensor:
    """The keys and values of 256 positions in int8, as drafts may read them: docs/formats.md.

    keys, values: [layers, 256, kv_heads, head_dim], bf16, fp16 or fp32, in which a layer lies in one piece; head_dim is
    a multiple of 16, at most 256. Returns uint8 [layers, kv_heads, bytes].
    """
    import torch

    refusals.expect_places(keys, values)
    layers, _, heads, width = keys.shape
    coded = torch.empty((layers, heads, _present().coded_bytes(width)), dtype=torch.uint8)
    _present().code_places(
        *(_NUMBERS[isa], threads, FORMATS[str(keys.dtype)], layers, heads, width),
        *(keys.data_ptr(), values.data_ptr(), keys.stride(0) * keys.element_size(), coded.data_ptr()),
    )
    return coded


def read_seconds(memory: torch.Tensor, threads: int, streams: int, isa: str) -> float:
    """The seconds of reading a whole tensor once. streams: how many each thread reads, 1, 2, 4, 8 or 16."""
    refusals.expect_streams(memory, streams)
    size = memory.numel() * memory.element_size()
    return float(_present().read(isa_number(isa), threads, streams, memory.data_ptr(), size))


def _present() -> ModuleType:
    native = module()
    if native is None:
        raise NativeError("there is no native module, so no instruction set is in use")
    return native
