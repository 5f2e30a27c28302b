"""A file whose blocks are compared, each time they are read, with what they were when the whole file was hashed.

A disk, a cable or a driver can give wrong bytes without an error. The SHA-256 of a file says whether it is right as a
whole, once. Passes read parts of it again and again. So while a file is hashed, a checksum is taken of each block that
will be read. CRC-32 finds every error of one or two bits and every one within 32 bits, and misses one of 2**32 others.
Of what the standard library has, it is the fastest.
"""

from __future__ import annotations

import mmap
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foretoken.common.hashes import expect_published
from foretoken.errors import CheckpointError, ContractError
from foretoken.offload.direct import DirectFile, Throttle
from foretoken.offload.store import Block

_PIECE = 4 << 20  # bytes that are hashed at once


class VerifiedFile(DirectFile):
    """A file of which only some blocks are read, after the whole was hashed.

    blocks: those that will be read. Blocks may overlap.
    """

    def __init__(self, path: Path, blocks: Iterable[Block]) -> None:
        super().__init__(path)
        self._expected = dict.fromkeys(sorted(blocks), 0)
        self._hashed = False

    def hashing(self, throttle: Throttle) -> Iterator[memoryview]:
        """The whole file past the system's cache, for a hash, and the checksums of its blocks on the way. Each piece is
        good until the next is asked for. The next one is read meanwhile."""
        memory = memoryview(mmap.mmap(-1, 2 * _PIECE))
        left, open_ = list(reversed(self._expected)), list[Block]()

        def read(start: int) -> memoryview:
            at = start // _PIECE % 2 * _PIECE
            until = throttle.begin(min(_PIECE, self.size - start))
            super(VerifiedFile, self).read(memory[at : at + _PIECE], start)
            throttle.wait(until)
            piece = memory[at : at + min(_PIECE, self.size - start)]
            while left and left[-1].offset < start + len(piece):
                open_.append(left.pop())
            for block in open_:
                within = piece[max(0, block.offset - start) : max(0, block.offset + block.size - start)]
                self._expected[block] = zlib.crc32(within, self._expected[block])
            open_[:] = [block for block in open_ if block.offset + block.size > start + len(piece)]
            return piece

        with ThreadPoolExecutor(1) as ahead:
            starts = range(0, self.size, _PIECE)
            coming = ahead.submit(read, 0) if starts else None
            for start in starts:
                assert coming is not None
                piece = coming.result()
                if start + _PIECE < self.size:
                    coming = ahead.submit(read, start + _PIECE)
                yield piece
        self._hashed = True

    def read(self, into: memoryview, offset: int) -> None:
        """As `DirectFile.read`, of one of the blocks. Raises CheckpointError, too, if its bytes are twice others than
        when the file was hashed."""
        block = Block(offset, len(into))
        if not self._hashed or block not in self._expected:
            raise ContractError(f"{block} of {self.path} was not hashed; expected one of the blocks that were named")
        for _ in range(2):
            super().read(into, offset)
            if zlib.crc32(into[: min(len(into), self.size - offset)]) == self._expected[block]:
                return
        raise CheckpointError(
            f"{self.path} gives other bytes at {offset:,} to {offset + len(into):,} than when it was loaded, twice in "
            "a row; see whether the disk is failing or something writes to the file, then load the model again"
        )


def opened(paths: Sequence[Path], blocks: Iterable[tuple[int, Block]], throttle: Throttle) -> list[VerifiedFile]:
    """Open files, and hash them. blocks: those that will be read, each with the number of its file. Raises
    CheckpointError for a file that is not what was published, or cannot be read."""
    by_file: dict[int, set[Block]] = defaultdict(set)
    for file, block in blocks:
        by_file[file].add(block)
    files = [VerifiedFile(path, by_file[number]) for number, path in enumerate(paths)]
    expect_published({file.path: file.hashing(throttle) for file in files})
    return files
