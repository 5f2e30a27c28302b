"""Checks of what the native module is given: each error says what came and what was expected.

A kernel takes addresses and sizes, and cannot check them. So these functions first check the arguments of each call in
`foretoken.kernels.native`: type, shape and device, and whether the memory has gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretoken.errors import ContractError
from foretoken.formats.table import PLACES
from foretoken.kernels import choosing
from foretoken.kernels.choosing import Floats, Noise

if TYPE_CHECKING:
    import torch

    from foretoken.formats.weight import QuantisedWeight

_COLDEST = 1e-30  # of temperatures: one through it is a float
FLOATS = ("torch.bfloat16", "torch.float16", "torch.float32")  # the types that kernels read, by name


def expect_floats(name: str, tensor: torch.Tensor, shape: tuple[str, ...]) -> None:
    """Expect numbers of a type that kernels read, with as many dimensions as `shape`, on the CPU, without gaps."""
    _expect(name, tensor, shape, FLOATS, "bfloat16, float16 or float32")


def expect_float32(name: str, tensor: torch.Tensor, shape: tuple[str, ...]) -> None:
    """Expect float32 numbers, with as many dimensions as `shape`, on the CPU, without gaps."""
    _expect(name, tensor, shape, ("torch.float32",), "float32")


def expect_logits(logits: torch.Tensor) -> None:
    """Expect logits for `argmax`: float32 [V], V > 0."""
    expect_float32("logits", logits, ("V",))
    if len(logits) == 0:
        raise ContractError("argmax got no logits; expected float32 [V], V > 0")


def expect_ranking(logits: Floats, noise: Noise | None, count: int) -> None:
    """Expect what `choosing.rank` expects, in contiguous memory."""
    choosing.expect(logits, noise, count)
    _expect_contiguous(logits)


def expect_totalling(logits: Floats, temperature: float) -> None:
    """Expect what `totals.log_total` expects, float32 in contiguous memory."""
    if not temperature >= _COLDEST:
        raise ContractError(f"log_total got temperature {temperature}; expected {_COLDEST} or more")
    if logits.dtype != "float32" or logits.ndim != 1 or len(logits) == 0:
        raise ContractError(f"log_total got {logits.dtype} {list(logits.shape)}; expected float32 [V], V > 0")
    _expect_contiguous(logits)


def _expect_contiguous(logits: Floats) -> None:
    if not (logits.flags.c_contiguous and logits.flags.aligned):
        raise ContractError(
            f"logits has strides {logits.strides}, or begins within a number; expected contiguous memory: call "
            f"numpy.require(logits, requirements='CA')"
        )


def expect_linear(
    x: torch.Tensor, weight: torch.Tensor | QuantisedWeight, bias: torch.Tensor | None, threads: int
) -> None:
    """Expect rows float32 [N, K], a weight [M, K] and a bias float32 [M] that fit each other. A low-bit weight is taken
    to be valid."""
    import torch

    if threads < 1:
        raise ContractError(f"{threads} threads were asked for; expected 1 or more")
    expect_float32("x", x, ("N", "K"))
    if isinstance(weight, torch.Tensor):
        expect_floats("weight", weight, ("M", "K"))
    outputs, inputs = weight.shape
    if inputs != x.shape[1]:
        raise ContractError(f"x has {x.shape[1]} inputs and the weight {inputs}; expected as many")
    if bias is not None:
        expect_float32("bias", bias, ("M",))
        if len(bias) != outputs:
            raise ContractError(f"the bias has {len(bias)} numbers for {outputs} outputs; expected as many")


def expect_low_bit(weight: QuantisedWeight, inputs: str) -> None:
    """Expect a low-bit weight on the CPU, and a type of inputs that its kernels support."""
    name = weight.format.name
    if inputs not in ("bf16", "int8", "fastest") and (inputs, name) != ("fp32", "mxfp4"):
        raise ContractError(f"{name} with inputs {inputs!r}; expected bf16, int8 or fastest, or with mxfp4 fp32")
    parts = (weight.codes, weight.scales)
    if any(part.device.type != "cpu" or not part.is_contiguous() for part in parts):
        raise ContractError(f"a {name} weight on {weight.codes.device} has gaps, or is not on the CPU; copy it there")


def expect_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Expect rows float32 [N, width] and their norm's weight float32 [width]."""
    expect_float32("x", x, ("N", "width"))
    expect_float32("weight", weight, ("width",))
    if len(weight) != x.shape[1]:
        raise ContractError(f"the weight has {len(weight)} numbers for a width of {x.shape[1]}; expected as many")


def expect_gate(gate: torch.Tensor, up: torch.Tensor) -> None:
    """Expect two tensors float32 [n]."""
    expect_float32("gate", gate, ("n",))
    expect_float32("up", up, ("n",))
    if len(gate) != len(up):
        raise ContractError(f"gate has {len(gate)} numbers and up {len(up)}; expected as many")


def expect_halves(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Expect heads float32 [N, head_dim], and cosines and sines float32 [N, head_dim / 2] to rotate them by."""
    expect_float32("heads", heads, ("N", "head_dim"))
    rows, head_dim = heads.shape
    if head_dim % 2:
        raise ContractError(f"heads of {list(heads.shape)} have no halves; expected an even head_dim")
    for name, tensor in (("cos", cos), ("sin", sin)):
        expect_float32(name, tensor, ("N", "head_dim / 2"))
        half = [rows, head_dim // 2]
        if list(tensor.shape) != half:
            raise ContractError(f"{name} is {list(tensor.shape)} for heads of {list(heads.shape)}; expected {half}")


def expect_rounding(x: torch.Tensor, dtype: torch.dtype) -> None:
    """Expect float32 [n], and a type that it can be rounded to."""
    expect_float32("x", x, ("n",))
    if str(dtype) not in FLOATS:
        name = str(dtype).removeprefix("torch.")
        raise ContractError(f"cannot round to {name}; expected bfloat16, float16 or float32")


def can_be_coded(head_dim: int) -> bool:
    """Whether kernels take keys and values of so many numbers in int8."""
    return head_dim % 16 == 0 and head_dim <= 256


def expect_places(keys: torch.Tensor, values: torch.Tensor) -> None:
    """Expect keys and values of a block of positions, [layers, 256, kv_heads, head_dim], each layer in one piece."""
    for name, tensor in (("keys", keys), ("values", values)):
        shape = ("layers", str(PLACES), "kv_heads", "head_dim")
        _expect_type(name, tensor, shape, FLOATS, "bfloat16, float16 or float32")
        _, positions, heads, width = tensor.shape
        fits = positions == PLACES and can_be_coded(width)
        if not fits or tensor.stride()[1:] != (heads * width, width, 1):
            raise ContractError(
                f"{name} are {list(tensor.shape)} with strides {tensor.stride()}; expected [{', '.join(shape)}], "
                "head_dim a multiple of 16 and at most 256, each layer in one piece"
            )
    if keys.shape != values.shape or keys.dtype != values.dtype or keys.stride() != values.stride():
        raise ContractError(
            f"keys are {keys.dtype} {list(keys.shape)} with strides {keys.stride()}, and values {values.dtype} "
            f"{list(values.shape)} with strides {values.stride()}; expected the same"
        )


def expect_streams(memory: torch.Tensor, streams: int) -> None:
    """Expect memory that can be read in whole cache lines, and a number of streams that the kernels support."""
    if memory.data_ptr() % 64 or not memory.is_contiguous():
        raise ContractError("the memory to read does not begin at a multiple of 64 bytes, or has gaps")
    if streams not in (1, 2, 4, 8, 16):
        raise ContractError(f"{streams} streams were asked for; expected 1, 2, 4, 8 or 16")


def _expect(name: str, tensor: torch.Tensor, shape: tuple[str, ...], types: tuple[str, ...], wanted: str) -> None:
    _expect_type(name, tensor, shape, types, wanted)
    if not tensor.is_contiguous():
        raise ContractError(f"{name} has strides {tensor.stride()}; expected contiguous memory: call .contiguous()")


def _expect_type(name: str, tensor: torch.Tensor, shape: tuple[str, ...], types: tuple[str, ...], wanted: str) -> None:
    dtype = str(tensor.dtype)
    if dtype not in types or tensor.ndim != len(shape) or tensor.device.type != "cpu":
        raise ContractError(
            f"{name} is {dtype.removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}; expected {wanted} "
            f"[{', '.join(shape)}] on the CPU"
        )
