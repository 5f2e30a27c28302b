"""Files that are hashed once and compared each time that they are read: what differs is found, and nothing else is."""

from __future__ import annotations

import hashlib
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from foretoken.common import hashes
from foretoken.common.hashes import blocks_of, expect_published, published, sha256, sha256_of
from foretoken.decoder.homes.huge_pages import allocate
from foretoken.errors import CheckpointError, ContractError
from foretoken.offload import verified
from foretoken.offload.direct import ALIGNED, Throttle
from foretoken.offload.store import Block, Extent
from foretoken.offload.stream import Stream
from foretoken.offload.verified import VerifiedFile, opened
from tests.files import flip

PAGES = 19
FREE = Throttle(None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(random.Random(0).randbytes(PAGES * ALIGNED - 100))
    return path


def stream_of(file: Path) -> Stream:
    """Two units, of 7 and 12 pages."""
    units = [[Extent(0, 0, 7 * ALIGNED)], [Extent(0, 7 * ALIGNED, PAGES * ALIGNED)]]
    blocks = [(0, block) for unit in units for extent in unit for block in extent.blocks(4 << 20)]
    return Stream(opened([file], blocks, FREE), units, allocate(PAGES * ALIGNED, huge=False))


def read(stream: Stream) -> bytes:
    """A pass. Afterwards its bytes are forgotten: the other unit is asked for first the next time."""
    came = []
    for unit in (1, 0):
        stream.acquire(unit)
        start, stop = stream.place(unit)
        came.append(stream.memory[start:stop].numpy().tobytes())
        stream.release(unit)
    return came[1] + came[0]


def read_twice(stream: Stream) -> None:
    """Two passes: the first may use what was read before."""
    for _ in range(2):
        read(stream)


@pytest.mark.parametrize("pages", [1, 2, 3, 64])
def test_a_hash_and_the_checksums_of_blocks_are_taken_in_one_reading(
    file: Path, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified, "_PIECE", pages * ALIGNED)
    blocks = [Block(at * ALIGNED, size * ALIGNED) for at, size in ((0, 5), (3, 1), (4, 9), (18, 1), (0, 19), (4, 2))]
    its = VerifiedFile(file, blocks)
    digest, data = hashlib.sha256(), file.read_bytes()
    for piece in its.hashing(FREE):
        digest.update(piece)
    assert digest.hexdigest() == hashlib.sha256(data).hexdigest() == sha256(file)
    assert its._expected == {block: zlib.crc32(data[block.offset : block.offset + block.size]) for block in blocks}
    memory = allocate(PAGES * ALIGNED).numpy().data
    for offset, size in blocks:
        its.read(memory[:size], offset)
        expected = data[offset : offset + size]
        assert bytes(memory[: len(expected)]) == expected


def test_a_byte_that_is_another_is_found_with_its_place_until_it_is_put_back(file: Path) -> None:
    stream, data = stream_of(file), file.read_bytes()
    for _ in range(2):
        assert read(stream)[: len(data)] == data
    for at in (0, 5 * ALIGNED, 7 * ALIGNED - 1, 9 * ALIGNED + 77, len(data) - 1):
        first, last = (0, 28_672) if at < 7 * ALIGNED else (28_672, 77_824)
        read(stream)
        flip(file, at)
        with pytest.raises(CheckpointError) as error:
            read_twice(stream)
        assert str(error.value) == (
            f"{file} gives other bytes at {first:,} to {last:,} than when it was loaded, twice in a row; see whether "
            "the disk is failing or something writes to the file, then load the model again"
        )
        flip(file, at)
        assert read(stream)[: len(data)] == data


def test_a_block_that_is_wrong_once_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, data, wrong, real = stream_of(file), file.read_bytes(), [0], os.preadv

    def preadv(descriptor: int, into: Any, offset: int) -> int:
        count = real(descriptor, into, offset)
        if wrong[0]:
            wrong[0] -= 1
            into[0][count // 2] ^= 4
        return count

    read(stream)
    monkeypatch.setattr(os, "preadv", preadv)
    for _ in range(3):
        wrong[0] = 1
        assert read(stream)[: len(data)] == data
        assert wrong[0] == 0, "it was read"


def test_only_what_was_hashed_is_read(file: Path) -> None:
    block = Block(ALIGNED, 2 * ALIGNED)
    its, memory = VerifiedFile(file, [block]), allocate(2 * ALIGNED).numpy().data
    with pytest.raises(ContractError, match="was not hashed"):
        its.read(memory, block.offset)
    assert sum(len(piece) for piece in its.hashing(FREE)) == file.stat().st_size
    its.read(memory, block.offset)
    with pytest.raises(ContractError, match="expected one of the blocks that were named"):
        its.read(memory[:ALIGNED], block.offset)


def test_what_fails_while_files_are_hashed_is_told_and_ends_the_others(tmp_path: Path) -> None:
    large, absent = tmp_path / "large", tmp_path / "absent"
    large.write_bytes(bytes(3 * hashes._BLOCK + 1))
    assert sha256_of({large: blocks_of(large)}) == {large: hashlib.sha256(bytes(3 * hashes._BLOCK + 1)).hexdigest()}
    with pytest.raises(CheckpointError, match=r"absent cannot be read \(No such file or directory\); fetch"):
        sha256_of({large: blocks_of(large), absent: blocks_of(absent)})
    cut, its = tmp_path / "cut", VerifiedFile(large, [])
    cut.write_bytes(b"")
    assert sha256_of({cut: VerifiedFile(cut, []).hashing(FREE)}) == {cut: hashlib.sha256(b"").hexdigest()}
    os.truncate(large, 100)
    with pytest.raises(CheckpointError, match="it was cut short"):
        sha256_of({large: its.hashing(FREE)})


def test_a_file_in_the_hub_s_cache_is_what_its_name_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = random.Random(1).randbytes(10_000)
    blob = tmp_path / "blobs" / hashlib.sha256(data).hexdigest()
    link = tmp_path / "snapshots" / "main" / "model.safetensors"
    for folder in (blob.parent, link.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(data)
    link.symlink_to("../../blobs/" + blob.name)
    assert published(link) == blob.name
    expect_published({link: blocks_of(link)})
    assert caplog.text == ""
    flip(blob, 4321)
    with pytest.raises(CheckpointError) as error:
        expect_published({link: blocks_of(link)})
    assert str(error.value) == (
        f"{link} is damaged: its SHA-256 is {sha256(blob)}, and the hub gave {blob.name}; remove {blob} and fetch the "
        "model again"
    )
    for other in (tmp_path / "blobs" / ("a" * 40), tmp_path / blob.name):
        other.write_bytes(data)
        assert published(other) is None
        expect_published({other: blocks_of(other)})
        assert f"no published hash is known for {other.name} in {other.parent}" in caplog.text
    assert len(caplog.records) == 2
