"""A safetensors file whose tensors are written in pieces: shapes and types are known before, contents are not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from foretoken.errors import ContractError
from foretoken.formats.weight import Part

_LINE = 64  # bytes; data begins at a multiple in the file, and so in the memory of a mapped file
_CODES = {torch.uint8: "U8", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


class TensorFile:
    """A new safetensors file. Each tensor is filled from its beginning on; the order of tensors does not matter.

    Tensors whose size is a multiple of 64 bytes come first, so that each of them begins at such a multiple. The codes
    of every low-bit format are among them. The others begin at multiples of their type's size. `close` writes all data
    to the disk.
    """

    def __init__(self, path: Path, parts: Mapping[str, Part]) -> None:
        sizes = {name: prod(part.shape) * part.dtype.itemsize for name, part in parts.items()}
        order = sorted(parts, key=lambda name: -min(sizes[name] & -sizes[name], _LINE))  # stable
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        self._next: dict[str, int] = {}
        self._left = sizes
        for name in order:
            begin, at = at, at + sizes[name]
            kind = {"dtype": _CODES[parts[name].dtype], "shape": list(parts[name].shape)}
            header[name] = {**kind, "data_offsets": [begin, at]}
            self._next[name] = begin
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _LINE)  # the format allows spaces
        self._path = path
        self._file = open(path, "xb")  # noqa: SIM115 (`close` does)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._begin = 8 + len(text)

    def write(self, name: str, piece: torch.Tensor) -> None:
        """Write the next bytes of a tensor."""
        data = piece.contiguous().view(-1).view(torch.uint8).numpy().data
        if len(data) > self._left[name]:
            raise ContractError(f"{len(data)} bytes for {name}, which lacks {self._left[name]}; expected no more")
        self._file.seek(self._begin + self._next[name])
        self._file.write(data)
        self._next[name] += len(data)
        self._left[name] -= len(data)

    def close(self) -> None:
        """Write all data to the disk. Raises ContractError if a tensor is incomplete."""
        lacking = [name for name, left in self._left.items() if left]
        if lacking:
            raise ContractError(f"{self._path.name} lacks bytes of {len(lacking)} tensors, the first is {lacking[0]}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(OSError):  # for data that could not be written
                self._file.close()
