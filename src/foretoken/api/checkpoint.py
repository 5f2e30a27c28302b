"""A checkpoint as it was loaded: the target, before anything drafts for it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from foretoken.common.files import FilesAsRead
from foretoken.common.hashes import blocks_of, expect_published
from foretoken.decoder.config import DecoderConfig, read_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.homes.huge_pages import size_of
from foretoken.decoder.loading import DTYPES, load_weights
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.shards import weight_files
from foretoken.decoder.weights import Weights
from foretoken.errors import CheckpointError, SettingError
from foretoken.kernels import gpu
from foretoken.settings.load import LoadSettings
from foretoken.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A loaded target. `name` is the caller's name for it, and `folder` the folder where it was found. `files` are the
    files that decide its output, as they were when they were read; None for a model that was not read from files."""

    target: Decoder
    tokenizer: Tokenizer | None
    name: str
    folder: Path
    end_tokens: frozenset[int] = frozenset()
    files: FilesAsRead | None = None


def read_checkpoint(
    folder: Path, settings: LoadSettings, *, besides: int = 0
) -> tuple[DecoderConfig, Weights, Tokenizer | None]:
    """The configuration, weights and tokenizer in a folder.

    besides: bytes of memory that other things will need, before or while the weights are used. Raises CheckpointError
    if tokenizer and model do not fit together, or if the settings ask to verify weights that are not what was
    published.
    """
    config, tokenizer = read_tokenizer(folder)
    files = FilesAsRead.note(weight_files(folder) if settings.verify_weights else ())
    expect_published({file: blocks_of(file) for file in files.files})
    weights = weights_of(folder, config, settings, besides)
    files.expect_unchanged("was changed while it was loaded; load it again")
    return config, weights, tokenizer


def read_tokenizer(folder: Path) -> tuple[DecoderConfig, Tokenizer | None]:
    """The configuration and the tokenizer in a folder. Raises CheckpointError if they do not fit together."""
    config = read_config(folder)
    tokenizer = Tokenizer.load(folder)
    if tokenizer is not None and tokenizer.size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer in {folder} has {tokenizer.size} tokens and the model {config.vocab_size}; "
            "they do not belong together: fetch both from one place"
        )
    return config, tokenizer


def weights_of(folder: Path, config: DecoderConfig, settings: LoadSettings, besides: int = 0) -> Weights:
    """The weights in a folder, with the type, the device and the home that the settings ask for."""
    return load_weights(
        folder,
        config,
        dtype=DTYPES.get(settings.dtype),
        device=settings.device,
        copy={"mapped": False, "copied": True}.get(settings.weights),
        besides=besides,
        threads=settings.threads,
    )


def bytes_in_memory(config: DecoderConfig, settings: LoadSettings) -> int:
    """The bytes of the weights that cannot stay in their files: all of them, or none."""
    dtype = settings.dtype if settings.dtype != "auto" else config.dtype
    if dtype not in DTYPES or (dtype == config.dtype and settings.weights != "copied"):
        return 0
    return size_of({name: (shape, DTYPES[dtype]) for name, shape in expected_shapes(config).items()})


def decoder_of(
    config: DecoderConfig, weights: Weights, settings: LoadSettings, *, codes_places: bool = False
) -> Decoder:
    """A decoder that keeps the promise that the settings ask for, or the strongest one that it can keep. codes_places:
    as `Decoder` has it."""
    # "auto" asks for "exact" and takes what is possible: `target.promise`
    asked = "algorithmic" if settings.promise == "algorithmic" else "exact"
    return Decoder(config, weights, threads=settings.threads, promise=asked, codes_places=codes_places)


def find_end_tokens(folder: Path, config: DecoderConfig, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The end tokens: from generation_config.json, else from config.json, else from the tokenizer. May be several, or
    none. Raises CheckpointError for an id that is not a token of the model."""
    for name in ("generation_config.json", "config.json"):
        if os.path.lexists(folder / name):  # a broken link must be an error, not lead to the end tokens of another file
            found = read_json(folder / name).get("eos_token_id")
            if found is not None:
                ids = found if isinstance(found, list) else [found]
                if not all(type(i) is int and 0 <= i < config.vocab_size for i in ids):
                    raise CheckpointError(
                        f"{name}: eos_token_id is {found!r}, expected ids below {config.vocab_size}; correct the file"
                    )
                return frozenset(ids)
    if tokenizer is not None and tokenizer.end_token is not None:
        return frozenset([tokenizer.end_token])
    return frozenset()


def expect_device(device: str) -> None:
    """Raise SettingError for a GPU that PyTorch does not see."""
    if device == "cpu":
        return
    number = int(device.partition(":")[2] or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise SettingError(f"device is {device!r}, but PyTorch sees no such GPU here; use cpu")


def expect_promise(settings: LoadSettings) -> None:
    """Raise SettingError if exactness is asked for where it cannot be kept. Log a warning for a GPU on which our
    kernels cannot run."""
    if settings.device == "cpu":
        return
    why = gpu.why_not(torch.device(settings.device))
    if why is not None and settings.promise == "exact":
        raise SettingError(
            f"promise is 'exact', which cannot be kept on {settings.device} ({why}); use the CPU, or promise 'auto'"
        )
    if why is not None:
        log.warning("on %s the model runs in PyTorch, row by row, which is slow (%s)", settings.device, why)
