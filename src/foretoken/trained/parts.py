"""The matrices and vectors of a trained drafter that lie beside its decoder's layers: multiplied with, in a format."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from foretoken.formats.quantiser import quantise
from foretoken.formats.table import Format
from foretoken.formats.weight import QuantisedWeight
from foretoken.kernels import native


class Parts:
    """tensors: by name, on one device. isa: the instruction set of the native kernels; None: PyTorch multiplies.
    format: to cast the matrices to; None, or in PyTorch: `dtype`."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        isa: str | None,
        threads: int,
        format: Format | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._isa, self._threads = isa, threads
        format = None if isa is None else format
        self._inputs = "bf16" if format is None else "fastest"
        self._vectors = {name: each.float().contiguous() for name, each in tensors.items() if each.ndim == 1}
        self._matrices: dict[str, torch.Tensor | QuantisedWeight] = {
            name: each.to(dtype, copy=True).contiguous()  # of its own: the file that it is mapped from can be closed
            if format is None
            else quantise(each.float(), format, name=name, threads=threads)
            for name, each in tensors.items()
            if each.ndim == 2
        }

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(each.nbytes for each in (*self._matrices.values(), *self._vectors.values()))

    @property
    def numbers(self) -> dict[str, int]:
        """How many numbers each matrix has, by its name."""
        return {name: math.prod(each.shape) for name, each in self._matrices.items()}

    def bytes_of(self, name: str) -> int:
        """The bytes of a matrix."""
        return self._matrices[name].nbytes

    def multiplied(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The products of rows, float32 [N, inputs], with a matrix, and its bias added: float32 [N, outputs]."""
        weight, bias = self._matrices[f"{name}.weight"], self._vectors.get(f"{name}.bias")
        if self._isa is not None:
            return native.linear(x.contiguous(), weight, bias, self._isa, self._threads, inputs=self._inputs)
        assert isinstance(weight, torch.Tensor)
        bias = None if bias is None else bias.to(weight.dtype)
        return torch.nn.functional.linear(x.to(weight.dtype), weight, bias).float()

    def normed(self, x: torch.Tensor, name: str, eps: float) -> torch.Tensor:
        """The RMS norm of rows, float32 [N, width]."""
        weight = self._vectors[f"{name}.weight"]
        if self._isa is not None:
            return native.rms_norm(x.contiguous(), weight, eps, self._isa)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
