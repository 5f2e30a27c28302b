"""A user's files as a source of drafts: what is in them is often written again.

The files are read, turned into tokens and indexed once, by a thread in the background. Until it is done, they are not
looked at.
"""

from __future__ import annotations

import codecs
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from foretoken.drafters.suffixes import SuffixArray
from foretoken.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

MOST_TOKENS = 4_000_000  # of all files: about 400 MB while they are sorted, 32 MB afterwards
_MOST_BYTES = 1 << 20  # of a file; larger ones are data rather than something that somebody wrote
_MOST_FILES = 100_000
_MADE = {"node_modules", "__pycache__", "venv", "site-packages", "build", "dist", "target"}  # by tools, not by people


class OwnFiles:
    """The index of a file, or of the files in a folder and below, which grows ready in the background."""

    def __init__(self, place: Path, tokenizer: Tokenizer) -> None:
        self._place, self._tokenizer = place, tokenizer
        self._index: SuffixArray | None = None
        self._thread = threading.Thread(target=self._read, name=f"reads {place}", daemon=True)
        self._thread.start()

    @property
    def index(self) -> SuffixArray | None:
        """The index; None before it is there."""
        return self._index

    def wait(self) -> None:
        """Return when the index is there."""
        self._thread.join()

    def _read(self) -> None:
        try:
            self._index = self._made()
        except Exception as error:  # a draft is never worth an end of the program
            log.warning(
                "lookup: %s cannot be indexed (%s: %s); it is left out", self._place, type(error).__name__, error
            )

    def _made(self) -> SuffixArray:
        began, texts, count, left_out = time.perf_counter(), [], 0, 0
        for path in files(self._place):
            text = None if count >= MOST_TOKENS else text_of(path)
            if text is None:
                left_out += count >= MOST_TOKENS
                continue
            texts.append(self._tokenizer.encode_part(text)[: MOST_TOKENS - count])
            count += len(texts[-1])
        index = SuffixArray(texts)
        seconds = time.perf_counter() - began
        log.debug("lookup: %d files of %s indexed, %d tokens, in %.1f s", len(texts), self._place, count, seconds)
        if not count:
            log.warning("lookup: %s holds no text that can be read, so nothing is drafted from it", self._place)
        if left_out:
            log.warning(
                "lookup: %s holds more than %d tokens; the %d oldest files are left out. Name a smaller folder to "
                "choose what is looked at",
                *(self._place, MOST_TOKENS, left_out),
            )
        return index


def files(place: Path) -> list[Path]:
    """A file, or the files in a folder and below, the newest first. Hidden ones, large ones and those in folders that
    tools make are left out."""
    if not place.is_dir():
        return [place]
    found = []
    for path in _below(place):
        try:
            state = path.stat()
        except OSError:
            continue
        if state.st_size <= _MOST_BYTES:
            found.append((-state.st_mtime_ns, path))
        if len(found) == _MOST_FILES:
            break
    return [path for _, path in sorted(found)]


def _below(place: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _MADE)
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def text_of(path: Path, most: int = _MOST_BYTES) -> str | None:
    """The text of a file, of its first `most` bytes, -1 for all; None for one that cannot be read or is no text."""
    try:
        with open(path, "rb") as file:
            content = file.read(most)
        decoder = codecs.getincrementaldecoder("utf-8")()
        # the beginning of a long file may end within a letter
        return None if b"\0" in content else decoder.decode(content, final=len(content) != most)
    except (OSError, UnicodeDecodeError):
        return None
