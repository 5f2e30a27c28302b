"""Text of the Python standard library, as token streams.

The embedded models are trained and measured on the source files of CPython's standard library, because every user's
machine already holds them. Two lists name the files for training and the files that are held out; nothing is ever
trained on a file that the first list does not name.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from foretoken.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODELS = Path(__file__).parent.parent / "models"
TRAIN_FILES = MODELS / "train-files.txt"
HELDOUT_FILES = MODELS / "heldout-files.txt"


def standard_library() -> Path:
    """The folder of this interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def file_names(listing: Path) -> list[str]:
    """The names in a list of files, one on each line, relative to the standard library's folder."""
    return [line.strip() for line in listing.read_text(encoding="utf-8").splitlines() if line.strip()]


def read_texts(listing: Path, root: Path | None = None) -> list[tuple[str, str]]:
    """`(name, text)` of every listed file that this machine has. Raises InputError if more than a tenth are absent."""
    root = root or standard_library()
    names = file_names(listing)
    found = [(name, root / name) for name in names if (root / name).is_file()]
    if len(found) < 0.9 * len(names):
        raise InputError(
            f"{root} holds {len(found)} of the {len(names)} files that {listing.name} names; "
            "expected nearly all of them: use CPython 3.11, with its test package installed"
        )
    return [(name, path.read_text(encoding="utf-8", errors="replace")) for name, path in found]


def token_stream(texts: list[tuple[str, str]], tokenizer: Tokenizer, end_token: int) -> list[int]:
    """All texts one after the other, an end token after each."""
    stream: list[int] = []
    for encoding in tokenizer.encode_batch([text for _, text in texts], add_special_tokens=False):
        stream.extend(encoding.ids)
        stream.append(end_token)
    return stream


def fingerprint(texts: list[tuple[str, str]]) -> str:
    """SHA-256 over names and contents: two machines with equal fingerprints trained on equal data."""
    digest = hashlib.sha256()
    for name, text in texts:
        digest.update(name.encode() + b"\0" + text.encode("utf-8") + b"\0")
    return digest.hexdigest()
