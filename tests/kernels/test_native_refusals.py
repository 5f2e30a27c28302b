"""What a native kernel cannot use is refused in words: what came, and what was expected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from foretoken.errors import ContractError
from foretoken.kernels import native
from tests.tiny import needs_native

pytestmark = needs_native


def ones(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    native.linear(x, weight, bias, "generic")


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    native.rms_norm(x, weight, 1e-5, "generic")


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> None:
    native.silu_mul(gate, up, "generic")


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    native.rotate(heads, cos, sin, "generic")


def widen(x: torch.Tensor) -> None:
    native.widen(x, "generic")


def to_half(x: torch.Tensor) -> None:
    native.round_to(x, torch.float16, "generic")


def argmax(logits: torch.Tensor) -> None:
    native.argmax(logits, "generic")


FLOAT32 = "expected float32"
ANY = "expected bfloat16, float16 or float32"
GAPS = "expected contiguous memory: call .contiguous()"

BAD: list[tuple[Callable[..., None], tuple[torch.Tensor, ...], str]] = [
    # types
    (linear, (ones(2, 3, dtype=torch.float64), ones(4, 3)), f"x is float64 [2, 3] on cpu; {FLOAT32} [N, K] on the CPU"),
    (linear, (ones(2, 3).bfloat16(), ones(4, 3)), f"x is bfloat16 [2, 3] on cpu; {FLOAT32} [N, K] on the CPU"),
    (linear, (ones(2, 3), ones(4, 3).double()), f"weight is float64 [4, 3] on cpu; {ANY} [M, K] on the CPU"),
    (linear, (ones(2, 3), ones(4, 3).to(torch.int8)), f"weight is int8 [4, 3] on cpu; {ANY} [M, K] on the CPU"),
    (linear, (ones(2, 3), ones(4, 3), ones(4).half()), f"bias is float16 [4] on cpu; {FLOAT32} [M] on the CPU"),
    (rms_norm, (ones(2, 3).half(), ones(3)), f"x is float16 [2, 3] on cpu; {FLOAT32} [N, width] on the CPU"),
    (rms_norm, (ones(2, 3), ones(3).half()), f"weight is float16 [3] on cpu; {FLOAT32} [width] on the CPU"),
    (silu_mul, (ones(3).half(), ones(3)), f"gate is float16 [3] on cpu; {FLOAT32} [n] on the CPU"),
    (silu_mul, (ones(3), ones(3).double()), f"up is float64 [3] on cpu; {FLOAT32} [n] on the CPU"),
    (
        rotate,
        (ones(2, 4).half(), ones(2, 2), ones(2, 2)),
        f"heads is float16 [2, 4] on cpu; {FLOAT32} [N, head_dim] on the CPU",
    ),
    (
        rotate,
        (ones(2, 4), ones(2, 2), ones(2, 2).double()),
        f"sin is float64 [2, 2] on cpu; {FLOAT32} [N, head_dim / 2] on the CPU",
    ),
    (to_half, (ones(3).half(),), f"x is float16 [3] on cpu; {FLOAT32} [n] on the CPU"),
    (widen, (ones(3).double(),), f"x is float64 [3] on cpu; {ANY} [n] on the CPU"),
    (argmax, (ones(3).half(),), f"logits is float16 [3] on cpu; {FLOAT32} [V] on the CPU"),
    # numbers of dimensions
    (linear, (ones(3), ones(4, 3)), f"x is float32 [3] on cpu; {FLOAT32} [N, K] on the CPU"),
    (linear, (ones(2, 3), ones(3)), f"weight is float32 [3] on cpu; {ANY} [M, K] on the CPU"),
    (linear, (ones(2, 3), ones(4, 3), ones(1, 4)), f"bias is float32 [1, 4] on cpu; {FLOAT32} [M] on the CPU"),
    (rms_norm, (ones(3), ones(3)), f"x is float32 [3] on cpu; {FLOAT32} [N, width] on the CPU"),
    (silu_mul, (ones(2, 3), ones(2, 3)), f"gate is float32 [2, 3] on cpu; {FLOAT32} [n] on the CPU"),
    (widen, (ones(2, 3),), f"x is float32 [2, 3] on cpu; {ANY} [n] on the CPU"),
    (to_half, (ones(2, 3),), f"x is float32 [2, 3] on cpu; {FLOAT32} [n] on the CPU"),
    # sizes that do not belong together
    (linear, (ones(2, 3), ones(4, 5)), "x has 3 inputs and the weight 5; expected as many"),
    (linear, (ones(2, 3), ones(4, 3), ones(3)), "the bias has 3 numbers for 4 outputs; expected as many"),
    (linear, (ones(2, 3), ones(4, 3), ones(5)), "the bias has 5 numbers for 4 outputs; expected as many"),
    (rms_norm, (ones(2, 3), ones(2)), "the weight has 2 numbers for a width of 3; expected as many"),
    (rms_norm, (ones(2, 3), ones(4)), "the weight has 4 numbers for a width of 3; expected as many"),
    (silu_mul, (ones(3), ones(2)), "gate has 3 numbers and up 2; expected as many"),
    (silu_mul, (ones(3), ones(4)), "gate has 3 numbers and up 4; expected as many"),
    (rotate, (ones(2, 4), ones(1, 2), ones(2, 2)), "cos is [1, 2] for heads of [2, 4]; expected [2, 2]"),
    (rotate, (ones(2, 4), ones(2, 2), ones(2, 3)), "sin is [2, 3] for heads of [2, 4]; expected [2, 2]"),
    (rotate, (ones(2, 4), ones(2, 1), ones(2, 2)), "cos is [2, 1] for heads of [2, 4]; expected [2, 2]"),
    (rotate, (ones(2, 5), ones(2, 2), ones(2, 2)), "heads of [2, 5] have no halves; expected an even head_dim"),
    (argmax, (ones(0),), "argmax got no logits; expected float32 [V], V > 0"),
    # gaps
    (linear, (ones(3, 2).T, ones(4, 3)), f"x has strides (1, 2); {GAPS}"),
    (linear, (ones(2, 3), ones(4, 6)[:, ::2]), f"weight has strides (6, 2); {GAPS}"),
    (linear, (ones(2, 3), ones(8, 3)[::2]), f"weight has strides (6, 1); {GAPS}"),
    (linear, (ones(2, 3), ones(4, 3), ones(8)[::2]), f"bias has strides (2,); {GAPS}"),
    (linear, (ones(2, 3), ones(1, 3).expand(4, 3)), f"weight has strides (0, 1); {GAPS}"),
    (rms_norm, (ones(2, 6)[:, :3], ones(3)), f"x has strides (6, 1); {GAPS}"),
    (rms_norm, (ones(2, 3), ones(6)[::2]), f"weight has strides (2,); {GAPS}"),
    (silu_mul, (ones(3), ones(6)[::2]), f"up has strides (2,); {GAPS}"),
    (rotate, (ones(4, 2).T, ones(2, 2), ones(2, 2)), f"heads has strides (1, 2); {GAPS}"),
    (rotate, (ones(2, 4), ones(2, 2).T, ones(2, 2)), f"cos has strides (1, 2); {GAPS}"),
    (widen, (ones(6)[::2],), f"x has strides (2,); {GAPS}"),
    (to_half, (ones(6)[::2],), f"x has strides (2,); {GAPS}"),
    (argmax, (ones(6)[::2],), f"logits has strides (2,); {GAPS}"),
    # elsewhere
    (linear, (ones(2, 3, device="meta"), ones(4, 3)), f"x is float32 [2, 3] on meta; {FLOAT32} [N, K] on the CPU"),
    (linear, (ones(2, 3), ones(4, 3, device="meta")), f"weight is float32 [4, 3] on meta; {ANY} [M, K] on the CPU"),
    (rms_norm, (ones(2, 3), ones(3, device="meta")), f"weight is float32 [3] on meta; {FLOAT32} [width] on the CPU"),
    (widen, (ones(3, device="meta"),), f"x is float32 [3] on meta; {ANY} [n] on the CPU"),
]


@pytest.mark.parametrize(("kernel", "tensors", "message"), BAD, ids=[f"{k.__name__}: {m}" for k, _, m in BAD])
def test_what_a_kernel_cannot_use_is_refused(
    kernel: Callable[..., None], tensors: tuple[torch.Tensor, ...], message: str
) -> None:
    with pytest.raises(ContractError) as error:
        kernel(*tensors)
    assert str(error.value) == message


@pytest.mark.parametrize("dtype", [torch.float64, torch.int16, torch.bool], ids=str)
def test_a_type_that_no_cache_has_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ContractError) as error:
        native.round_to(ones(3), dtype, "generic")
    name = str(dtype).removeprefix("torch.")
    assert str(error.value) == f"cannot round to {name}; expected bfloat16, float16 or float32"


@pytest.mark.parametrize("start", [1, 4, 32])
def test_memory_to_read_must_begin_at_a_line(start: int) -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    assert memory.data_ptr() % 64 == 0
    with pytest.raises(ContractError, match="does not begin at a multiple of 64 bytes"):
        native.read_seconds(memory[start:], 1, 1, "generic")
    with pytest.raises(ContractError, match="or has gaps"):
        native.read_seconds(memory[::64], 1, 1, "generic")
    assert native.read_seconds(memory, 1, 1, "generic") > 0
