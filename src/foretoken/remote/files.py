"""A tokenizer's files on their way from a host to a client: compressed, with a list of names and sizes before them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from foretoken.common.files import cache_folder
from foretoken.errors import RemoteError
from foretoken.text.tokenizer import TOKENIZER_FILES, Tokenizer

_NAMES = (
    *TOKENIZER_FILES,
    "added_tokens.json",
    "special_tokens_map.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",  # its kind tells transformers which tokenizer it is
)
_MOST = 256 << 20  # bytes of all files


def packed(folder: Path) -> bytes:
    """The files of the tokenizer in a folder, as they are sent; nothing if there is none."""
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return b""
    found = {name: (folder / name).read_bytes() for name in _NAMES if (folder / name).is_file()}
    listed = json.dumps([[name, len(data)] for name, data in found.items()]).encode()
    return zlib.compress(listed + b"\n" + b"".join(found.values()))


def hash_of(data: bytes) -> str:
    """The name of what `packed` gave; empty for nothing."""
    return hashlib.sha256(data).hexdigest()[:32] if data else ""


def tokenizer_of(name: str, fetch: Callable[[], bytes]) -> Tokenizer | None:
    """The tokenizer of files with a hash. fetch: gets them from the host, if the user's cache does not have them.

    Raises RemoteError for what is no such data, and CheckpointError for files that are no tokenizer.
    """
    if len(name) != 32 or not set(name) <= set("0123456789abcdef"):  # it names a folder
        raise RemoteError("the host names its tokenizer by something else than a hash; see who answers there")
    place = cache_folder("tokenizers") / name
    if place.is_dir():
        return Tokenizer.load(place)
    data = fetch()
    if hash_of(data) != name:
        raise RemoteError("the host's tokenizer has another hash than it said; try again")
    files = _unpacked(data)
    with tempfile.TemporaryDirectory(prefix="foretoken-") as aside:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as scratch:
                made = Path(scratch) / "it"
                _write(made, files)
                with suppress(OSError):  # another process was first
                    os.rename(made, place)
        except OSError:  # a cache that cannot be written: the files are fetched anew each time
            place = Path(aside) / "it"
            _write(place, files)
        return Tokenizer.load(place)


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _unpacked(data: bytes) -> dict[str, bytes]:
    try:
        its = zlib.decompressobj()
        everything = its.decompress(data, _MOST)
        listed, _, content = everything.partition(b"\n")
        sizes = json.loads(listed)
        found, at = {}, 0
        for name, size in sizes:
            if name not in _NAMES or type(size) is not int or not 0 <= size <= len(content) - at:
                raise ValueError("it is no list of a tokenizer's files")
            found[name] = content[at : at + size]
            at += size
        if its.unconsumed_tail or at != len(content):
            raise ValueError("it is longer than it says")
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise RemoteError(f"the host's tokenizer cannot be read ({error}); try again") from None
    return found
