"""The files of published drafters: the names, shapes and values of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from foretoken.decoder.loading import DTYPES
from foretoken.decoder.shards import INDEX, weight_files
from foretoken.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError, quoted


def canonical(name: str) -> str:
    """A tensor's name as most files would have it, with `model.` before it."""
    name = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
    return name if name in ("d2t", "t2d") else f"model.{name}"


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in a folder, by their canonical names. Raises CheckpointError for files that cannot be
    read, or that hold a tensor twice."""
    found: dict[str, tuple[int, ...]] = {}
    for path in _files(folder):
        for name, shape in _open(path, _shapes).items():
            if canonical(name) in found:
                raise CheckpointError(
                    f"{folder} holds {quoted(canonical(name), 80)} twice, under two names; fetch it again"
                )
            found[canonical(name)] = shape
    return found


def read(folder: Path, wanted: set[str]) -> dict[str, torch.Tensor]:
    """Some tensors in a folder, those of them that are there. wanted: their canonical names."""
    found: dict[str, torch.Tensor] = {}
    for path in _files(folder):
        found |= _open(
            path,
            lambda file: {
                canonical(name): file.get_tensor(name) for name in list(file.keys()) if canonical(name) in wanted
            },
        )
    return found


def expect_floats(tensor: torch.Tensor, stored: str, folder: Path) -> None:
    """Raise UnsupportedModelError for a tensor of another type than weights have. stored: its name in the file."""
    if tensor.dtype not in DTYPES.values():
        raise UnsupportedModelError(
            f"{folder}: {stored} is {tensor.dtype}; supported: {', '.join(DTYPES)}: use the bf16 original"
        )


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}


def _open(path: Path, use: Callable[[Any], Any]) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            return use(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors ({error}); fetch the file again") from None


def _files(folder: Path) -> list[Path]:
    pickle = folder / "pytorch_model.bin"
    if (folder / INDEX).exists() or (folder / "model.safetensors").exists():
        return weight_files(folder)
    if pickle.exists():
        raise ModelNotFoundError(
            f"{folder} holds {pickle.name}, a pickle, which may run a program when it is read; write it as "
            "safetensors, which runs none: "
            'python -c "import torch, safetensors.torch as s; s.save_file({n: t.contiguous() for n, t in '
            f"torch.load('{pickle}', weights_only=True).items()}}, '{folder / 'model.safetensors'}')\""
        )
    raise ModelNotFoundError(
        f"{folder} has no model.safetensors; if the drafter is published as pytorch_model.bin, fetch it into a folder "
        "(hf download OWNER/NAME --local-dir FOLDER), and name that folder"
    )
