"""Text to train a drafter on: the files that a user names, or the standard library; and what is held out of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from foretoken.common.progress import many
from foretoken.drafters import own_files
from foretoken.errors import InputError, quoted
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import corpus

log = logging.getLogger(__name__)

STDLIB = "stdlib"  # the files that the embedded models were trained on
_STDLIB = (corpus.TRAIN_FILES, corpus.HELDOUT_FILES)
_EVERY = 20  # of so many files, one is held out


class Streams(NamedTuple):
    """Token ids, int [n]: to train on, and held out."""

    learned: torch.Tensor
    heldout: torch.Tensor


def read(data: Sequence[str], tokenizer: Tokenizer) -> Streams:
    """The text of files, of all files below folders, or of `stdlib`, with an end token behind each file. A file that is
    named several times, as below several folders, is read once.

    Every twentieth file is held out, and of fewer files the last twentieth of their text. Of `stdlib`, the files are
    held out that the embedded models have not seen. Of files that are not text, a warning says how many there are.
    Raises InputError for a place without text.
    """
    streams = [Streams(*(_joined(_listed(names), tokenizer) for names in _STDLIB))] if STDLIB in data else []
    texts: dict[Path, str] = {}
    for place in data:
        if place != STDLIB:
            texts |= _texts(Path(place).expanduser())
    if texts:
        streams.append(_divided(list(texts.values()), tokenizer))
    return Streams(*(torch.cat(parts) for parts in zip(*streams, strict=True)))


def _divided(texts: Sequence[str], tokenizer: Tokenizer) -> Streams:
    if len(texts) < _EVERY:
        whole = _joined(iter(texts), tokenizer)
        cut = len(whole) - len(whole) // _EVERY
        return Streams(whole[:cut], whole[cut:])
    held = texts[_EVERY - 1 :: _EVERY]
    learned = (text for at, text in enumerate(texts, 1) if at % _EVERY)
    return Streams(_joined(learned, tokenizer), _joined(iter(held), tokenizer))


def _listed(names: Path) -> Iterator[str]:
    yield from (text for _, text in corpus.read_texts(names))


def _texts(place: Path) -> dict[Path, str]:
    """The texts at a place, by where their files really lie."""
    if not place.exists():
        raise InputError(f"there is no file or folder {quoted(str(place), 80)} to train on; name files of text")
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    shown = [file for file in files if not any(part.startswith(".") for part in file.relative_to(place).parts)]
    texts = {file: own_files.text_of(file, most=-1) for file in shown}
    if not any(texts.values()):
        raise InputError(f"{place} holds no text to train on; name files of text, or a folder with such files")
    others = [file for file, text in texts.items() if text is None]
    if others:
        said = f"{many(len(others), 'file')} of {place}, such as {others[0].name}"
        log.warning("%s: not UTF-8 text, or not to be read; left out", said)
    return {file.resolve(): text for file, text in texts.items() if text}


def _joined(texts: Iterator[str], tokenizer: Tokenizer) -> torch.Tensor:
    end = [] if tokenizer.end_token is None else [tokenizer.end_token]
    return torch.tensor([token for text in texts for token in (*tokenizer.encode_part(text), *end)])
