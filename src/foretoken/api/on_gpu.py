"""A GPU with too little memory for a model: what can run there, and what memory it takes there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from foretoken.common.limits import memory_left
from foretoken.common.progress import size
from foretoken.decoder.config import DecoderConfig
from foretoken.decoder.shapes import linear_shapes
from foretoken.drafters.recipe import Level
from foretoken.errors import SettingError
from foretoken.formats import Format
from foretoken.kernels import gpu
from foretoken.offload.plan import Plan
from foretoken.settings.load import LoadSettings

CUDA = 896 << 20  # bytes for CUDA, its libraries and their kernels, of which PyTorch does not know
_WORKSPACES = 192 << 20  # bytes that products, attention, the test of rows, and recorded passes take, of a decoder
_LOGITS = 128  # rows of logits that are there at once, those that are copied to the CPU among them
SHARE = 0.97  # of a bound is planned: what is handed out in pieces leaves gaps
_ROUNDED = 1.03  # PyTorch hands out memory in pieces of some sizes


def expect_possible(config: DecoderConfig, levels: Sequence[Level], settings: LoadSettings) -> None:
    """Raise SettingError for a model or a draft that cannot run on a GPU with too little memory."""
    what = "layers that are copied there in each pass" if settings.stream_layers is not None else "a bound of memory"
    if config.low_bit is not None:
        raise SettingError(
            f"{what} on {settings.device} cannot be had for a model in {config.low_bit.label}; take the model that it "
            "was made from, or device cpu"
        )
    low_bit = [level.name for level in levels if level.format is not None]
    if low_bit and not gpu.runs_on(settings.device):
        why = gpu.why_not(torch.device(settings.device))
        raise SettingError(f"draft {low_bit[0]!r} needs low-bit weights on the GPU ({why}); use 'lookup' or 'none'")
    wide = [level.name for level in levels if level.format is not None and level.format.name in gpu.WIDENED]
    if wide:
        raise SettingError(
            f"draft {wide[0]!r} is no smaller on a GPU than one of 4 bits for a weight; use format int4 or mxfp4"
        )


def expect_host_memory(plan: Plan, device: str) -> None:
    """Raise SettingError if the machine has no memory for the layers for which a GPU has none."""
    left, wanted = memory_left(), plan.bytes_a_pass + plan.substitutes  # which are made there
    if plan.streamed and left is not None and wanted > left:
        raise SettingError(
            f"{size(wanted)} of layers, for which {device} has no room, would lie in the machine's memory, and "
            f"{size(left)} are left there; close other programs, or use device cpu, which reads them from the disk"
        )


def row_bytes(config: DecoderConfig) -> int:
    """What a row takes in a pass: its states, and its numbers in the feed-forward layer, in float32 and in the weights'
    type."""
    return 16 * (config.hidden_size + config.intermediate_size)


def pass_bytes(config: DecoderConfig, levels: Sequence[Level], rows: int) -> int:
    """What passes take, of the model over some rows and of its drafts."""
    turns = 8 * 2 * config.head_dim * config.context_length  # cosines and sines, once in pages and once in a piece
    decoders = 1 + sum(level.has_decoder for level in levels)
    return row_bytes(config) * rows + 4 * _LOGITS * config.vocab_size + decoders * (_WORKSPACES + turns)


def size_in(format: Format, config: DecoderConfig, own: Collection[int] = ()) -> int:
    """The bytes that a copy takes there. own: layers that stay the model's."""
    shapes = linear_shapes(config, without=own).values()
    return int(_ROUNDED * sum(gpu.bytes_of(format, *shape) for shape in shapes))
