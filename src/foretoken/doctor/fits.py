"""Which models fit into memory, in which format, and how many tokens per second memory allows in plain decoding.

A token reads every weight except the embedding's once. Its time is at least the bytes of those weights divided by the
speed of memory. What drafting gains comes on top and depends on the text.
"""

from __future__ import annotations

from dataclasses import fields
from math import prod
from pathlib import Path

from foretoken.common.source import resolve
from foretoken.doctor.facts import Checkpoint, Fit, Fitting
from foretoken.errors import ForetokenError
from foretoken.rehearsal.shapes import SHAPES, Shape

FORMATS: tuple[str, ...] = ("bf16", "int8", "int4", "mxfp4")
SHOWN = tuple(name for name in SHAPES if name != "llama-68m")
DRAFT = "mxfp4"  # the format of the copy that drafts, for weights in a much larger format
_DRAFTED = ("fp32", "bf16", "fp16", "int8")
CONTEXT = 4096  # tokens of keys and values
PROCESS = 500_000_000  # bytes of Python, PyTorch, tokenizer, logits
_PLAIN = {"bf16": 2, "fp16": 2, "fp32": 4}  # bytes of a number
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_SIZES = tuple(field.name for field in fields(Shape) if field.name not in ("name", "model_type"))


def fitting(
    checkpoint: Checkpoint | None, shape: Shape | None, available: int | None, memory: float | None, disk: float | None
) -> tuple[Fitting, ...]:
    """How the named model fits, in its own format and others; if none was named, models of usual sizes.

    available: bytes of memory. memory, disk: bytes per second.
    """
    if checkpoint is None:
        shapes, formats = [SHAPES[name] for name in SHOWN], FORMATS
    elif shape is None or checkpoint.format is None:
        return ()
    else:
        shapes, formats = [shape], formats_of(checkpoint.format)
    return tuple(
        Fitting(one.name, one.parameters, tuple(fit(one, name, available, memory, disk) for name in formats))
        for one in shapes
    )


def formats_of(own: str) -> tuple[str, ...]:
    """The formats that a checkpoint can have: its own and, for bf16, fp16 and fp32, every low-bit format."""
    return (own, *FORMATS[1:]) if own in _PLAIN else (own,)


def fit(shape: Shape, name: str, available: int | None, memory: float | None, disk: float | None) -> Fit:
    """How a shape fits in a format. Embedding and norms are bf16; in fp16 and fp32 they have the format's type."""
    width = _PLAIN.get(name, 2)
    linear = linear_bytes(shape, name)
    embedding = shape.vocab_size * shape.hidden_size * width
    beside = max(0, shape.parameters - shape.linear_parameters) * width  # norms, biases, an untied embedding
    size = linear + beside + (embedding if shape.tied and name not in _PLAIN else 0)
    plain = size + CONTEXT * shape.cache_bytes * width // 2 + PROCESS
    draft = linear_bytes(shape, DRAFT) if name in _DRAFTED else 0
    fits = None
    if available is not None:
        fits = "yes" if plain + draft <= available else "without a draft copy" if plain <= available else "no"
    speed = disk if fits == "no" else memory
    return Fit(name, size, linear, plain + draft, fits, None if speed is None else speed / linear)


def linear_bytes(shape: Shape, name: str) -> int:
    """Bytes that a pass reads: the layers' seven matrices and the output layer."""
    if name in _PLAIN:
        return shape.linear_parameters * _PLAIN[name]
    from foretoken.formats import format_of
    from foretoken.formats.weight import parts

    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, wide = shape.hidden_size, shape.intermediate_size
    layer = [(queries, hidden), *2 * [(keys, hidden)], (hidden, queries), *2 * [(wide, hidden)], (hidden, wide)]
    every = [*shape.num_layers * layer, (shape.vocab_size, hidden)]
    of_format = (part for linear in every for part in parts(format_of(name), *linear).values())
    return sum(prod(part.shape) * part.dtype.itemsize for part in of_format)


class _FoundError(Exception):
    """Carries a hub model's folder out of `resolve` before any weights are fetched."""


def find(name: str) -> tuple[Path, bool]:
    """A model's folder, and whether the folder should be complete. The folder of a model on the hub has only what was
    fetched before, and config.json, which this function fetches. Raises ModelNotFoundError."""

    def accept(folder: Path) -> None:
        raise _FoundError(folder)

    try:
        return resolve(name, accept=accept), True
    except _FoundError as found:
        return found.args[0], False


def examine(name: str, folder: Path, isa: str | None, *, whole: bool) -> tuple[Checkpoint, Shape | None]:
    """What a checkpoint is, and whether it can be loaded. Its weights are mapped, not read. isa: None without the
    native module. whole: the weights must be there."""
    from foretoken.decoder.config import read_config
    from foretoken.decoder.loading import load_weights, mapped_tensors
    from foretoken.decoder.native_pass import why_not

    try:
        config = read_config(folder)
        here = whole or any(folder.glob("*.safetensors"))
        dtype, reason = _SHORT.get(str(config.dtype), "fp32"), None
        if here and config.low_bit is not None:
            mapped_tensors(folder, config)
        elif here:
            weights = load_weights(folder, config)
            dtype = _SHORT[str(weights.embedding.dtype).removeprefix("torch.")]
            reason = why_not(weights) if isa else None
    except ForetokenError as error:
        return Checkpoint(name, str(folder), error=str(error)), None
    called = folder.name if Path(name).is_dir() else name
    shape = Shape(called, config.model_type, **{size: getattr(config, size) for size in _SIZES})
    format = dtype if config.low_bit is None else config.low_bit.label
    return Checkpoint(name, str(folder), config.model_type, format, here, reason), shape
