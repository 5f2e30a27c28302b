"""Where each tensor of a checkpoint lies in its files.

Source: the format of safetensors: eight bytes with the length of the header, the header in JSON, then the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from foretoken.errors import CheckpointError
from foretoken.offload.direct import ALIGNED

_LONGEST_HEADER = 100_000_000  # bytes, as the library has it
_GAP = 1 << 20  # bytes between two tensors that are read along: a read of its own costs more


class Place(NamedTuple):
    """Where a tensor lies: bytes [start, stop) of a file, which is named by its number."""

    file: int
    start: int
    stop: int


class Block(NamedTuple):
    """Bytes of a file that are read at once. Both numbers are multiples of `ALIGNED`."""

    offset: int
    size: int

    @classmethod
    def around(cls, start: int, stop: int) -> Self:
        """The block to read for the bytes [start, stop), which begin and end anywhere."""
        first = start // ALIGNED * ALIGNED
        return cls(first, -(-stop // ALIGNED) * ALIGNED - first)


class Extent(NamedTuple):
    """Bytes [start, stop) of a file that are read together; both are multiples of `ALIGNED`. So `stop` may lie behind
    the file's end."""

    file: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stop - self.start

    def blocks(self, size: int) -> Iterator[Block]:
        """The extent, in blocks of at most `size` bytes."""
        return (Block(at, min(size, self.stop - at)) for at in range(self.start, self.stop, size))


def places(paths: Sequence[Path]) -> dict[str, Place]:
    """The places of all tensors in some safetensors files, by their names. Raises CheckpointError for a file whose
    header cannot be read, or names bytes that the file does not have."""
    return {name: place for number, path in enumerate(paths) for name, place in _in_file(number, path)}


def _in_file(number: int, path: Path) -> Iterable[tuple[str, Place]]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if 2 <= length <= _LONGEST_HEADER else b""
        size = path.stat().st_size
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        found = {name: [int(at) for at in tensor["data_offsets"]] for name, tensor in tensors.items()}
        first = 8 + length
        if any(not 0 <= start <= stop <= size - first for start, stop in found.values()):
            raise ValueError("a tensor lies outside of it")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); fetch the file again") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read as safetensors ({error}); it may be cut short: fetch the file again"
        ) from None
    return [(name, Place(number, first + start, first + stop)) for name, (start, stop) in found.items()]


def extents(wanted: Iterable[Place]) -> list[Extent]:
    """What to read for some tensors: tensors that lie close to each other are read together."""
    found: list[Extent] = []
    for place in sorted(wanted):
        start, stop = place.start // ALIGNED * ALIGNED, -(-place.stop // ALIGNED) * ALIGNED
        if found and found[-1].file == place.file and start - found[-1].stop <= _GAP:
            found[-1] = found[-1]._replace(stop=max(stop, found[-1].stop))
        else:
            found.append(Extent(place.file, start, stop))
    return found
