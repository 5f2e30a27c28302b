"""Units come in as passes use them: what is held is what the file holds, in any order, from any number of threads."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretoken.decoder.homes.huge_pages import allocate
from foretoken.errors import CheckpointError, ContractError
from foretoken.offload.direct import ALIGNED, DirectFile, Throttle
from foretoken.offload.ring import offsets, shared
from foretoken.offload.store import Extent
from foretoken.offload.stream import BLOCK, Stream, Streamed

PAGES = (3, 1, 5, 2, 4, 1, 3)  # of each unit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(random.Random(0).randbytes(sum(PAGES) * ALIGNED - 100))
    return path


def stream_of(
    file: Path, pages: int, throttle: Throttle | None = None, *, sizes: Sequence[int] = PAGES, block: int = ALIGNED
) -> Stream:
    units, at = [], 0
    for size in sizes:
        units.append([Extent(0, at, at + size * ALIGNED)])
        at += size * ALIGNED
    memory = allocate(pages * ALIGNED, huge=False)
    return Stream([DirectFile(file)], units, memory, throttle or Throttle(None), block)


@cache
def contents(file: Path) -> bytes:
    return file.read_bytes()


def expect_there(stream: Stream, file: Path, unit: int) -> None:
    ((_, start, stop),) = stream.units[unit]
    expected = contents(file)[start:stop]
    first, _ = stream.place(unit)
    assert stream.memory[first : first + len(expected)].numpy().tobytes() == expected, unit


def one_pass(stream: Stream, file: Path) -> None:
    for unit in range(len(PAGES)):
        stream.acquire(unit)
        expect_there(stream, file, unit)
        stream.release(unit)


@pytest.mark.parametrize("block", [ALIGNED, 2 * ALIGNED, BLOCK])
@pytest.mark.parametrize("pages", [5, 6, 7, 9, 12])
def test_what_is_held_is_what_the_file_holds(file: Path, pages: int, block: int) -> None:
    stream, chosen = stream_of(file, pages, block=block), random.Random(pages)
    for _ in range(20):
        lo = chosen.randrange(len(PAGES))
        hi = chosen.randrange(lo, len(PAGES)) + 1
        for unit in range(lo, hi):  # a pass through some layers
            home = Streamed(stream, unit)
            home.acquire()
            expect_there(stream, file, unit)
            home.release()
    assert stream.traffic.bytes >= 20 * ALIGNED


def test_units_come_in_ahead_and_are_not_read_twice(file: Path) -> None:
    stream = stream_of(file, 12)
    for _ in range(3):
        for unit in range(len(PAGES)):
            stream.acquire(unit)
            stream.release(unit)
    time.sleep(0.1)
    ahead = stream.traffic.bytes - 3 * sum(PAGES) * ALIGNED
    assert 0 < ahead <= 12 * ALIGNED, "only the first units of the next pass"
    time.sleep(0.3)
    before = stream.traffic.bytes
    stream.acquire(0)
    expect_there(stream, file, 0)
    assert stream.traffic.bytes == before


def test_nothing_is_written_over_a_unit_that_is_held(file: Path) -> None:
    stream = stream_of(file, 5)  # room for the largest alone
    stream.acquire(2)
    other = threading.Thread(target=lambda: (stream.acquire(0), stream.release(0)), daemon=True)
    other.start()
    time.sleep(0.05)
    expect_there(stream, file, 2)  # as it was
    assert other.is_alive()
    stream.release(2)
    other.join(10)
    assert not other.is_alive()


def test_what_is_free_of_a_unit_s_place_is_read_while_the_one_before_it_is_held(file: Path) -> None:
    stream = stream_of(file, 5, sizes=(2, 3, 3, 3))
    assert [stream.place(unit)[0] // ALIGNED for unit in range(4)] == [0, 2, 0, 2]
    for unit, read in enumerate((2 + 3, 5 + 2, 8 + 2, 11 + 2)):  # those held, and what is free of the next one
        stream.acquire(unit)
        late = time.monotonic() + 10
        while stream.traffic.bytes < read * ALIGNED and time.monotonic() < late:
            time.sleep(0.001)
        time.sleep(0.02)
        assert stream.traffic.bytes == read * ALIGNED, unit
        expect_there(stream, file, unit)
        stream.release(unit)


def test_a_pass_that_begins_elsewhere_gives_up_what_had_no_place_yet(file: Path) -> None:
    stream, seen = stream_of(file, 5, sizes=(2, 3, 3, 3)), []

    def passes() -> None:
        for unit in (1, 0, 3, 1, 2, 0, 2, 1):  # acquired, and let go by the next: of the one behind it a page is left
            stream.acquire(unit)
            expect_there(stream, file, unit)
            seen.append(unit)

    thread = threading.Thread(target=passes, daemon=True)
    thread.start()
    thread.join(10)
    assert seen == [1, 0, 3, 1, 2, 0, 2, 1]


class Gated(DirectFile):
    """A disk whose reads end when they may. begun: where each has begun, in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.begun: list[int] = []
        self.slow, self.may_end = -1, threading.Event()  # the read that waits

    def read(self, into: Any, offset: int) -> None:
        self.begun.append(offset // ALIGNED)
        if offset // ALIGNED == self.slow:
            assert self.may_end.wait(10)
        super().read(into, offset)


def test_a_place_into_which_something_given_up_is_still_read_is_not_free(file: Path) -> None:
    plain = stream_of(file, 5, sizes=(2, 3, 3, 3))
    disk = Gated(file)
    disk.slow = 5  # the first page of unit 2, which lies where unit 0 does
    stream = Stream([disk], plain.units, plain.memory, block=ALIGNED)
    stream.acquire(1)  # unit 2 begins
    while disk.slow not in disk.begun:
        time.sleep(0.001)
    disk.begun.clear()
    other = threading.Thread(target=stream.acquire, args=(0,), daemon=True)
    stream.release(1)
    other.start()  # a pass that begins elsewhere
    time.sleep(0.05)
    assert not {0, 1} & set(disk.begun), "late bytes of unit 2 would lie over those of unit 0"
    disk.may_end.set()
    other.join(10)
    assert not other.is_alive()
    expect_there(stream, file, 0)


def test_several_threads_have_what_they_hold(file: Path) -> None:
    stream, failed = stream_of(file, 7), []

    def passes() -> None:
        try:
            for _ in range(15):
                one_pass(stream, file)
        except BaseException as error:  # for the assertion below
            failed.append(error)

    threads = [threading.Thread(target=passes, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_a_thread_that_was_interrupted_leaves_nothing_behind_that_others_wait_for(file: Path) -> None:
    stream = stream_of(file, 5)
    for unit in (2, 4, 0, 2, 6):  # acquired, and never released
        stream.acquire(unit)
        expect_there(stream, file, unit)
    one_pass(stream, file)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer")
def test_ctrl_c_at_any_moment_leaves_a_stream_that_reads_on(file: Path) -> None:
    stream, chance, came = stream_of(file, 7), random.Random(3), 0
    assert contents(file)  # an interrupted read of it would leave it open
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for turn in range(2000):  # on a fast machine most passes end before they are interrupted
            if turn >= 150 and came > 30:
                break
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-3))
                one_pass(stream, file)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                came += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came > 30
    for _ in range(3):
        one_pass(stream, file)


class Broken(DirectFile):
    """A disk that fails some times, then works again."""

    times = 0

    def _fill(self, into: memoryview, offset: int, expected: int) -> None:
        if self.times:
            self.times -= 1
            raise OSError(5, "Input/output error")
        super()._fill(into, offset, expected)


@pytest.mark.parametrize("pages", [5, 6, 9])
def test_a_read_that_fails_once_is_tried_again_and_twice_is_an_error_that_ends_with_the_fault(
    file: Path, pages: int
) -> None:
    plain = stream_of(file, pages)
    disk = Broken(file)
    stream = Stream([disk], plain.units, plain.memory, block=ALIGNED)
    disk.times = 1
    stream.acquire(0)
    expect_there(stream, file, 0)
    stream.release(0)
    disk.times = 1000
    with pytest.raises(CheckpointError, match=r"could not be read at .* \(Input/output error\), twice in a row"):
        one_pass(stream, file)
    disk.times = 0
    one_pass(stream, file)


@pytest.mark.parametrize("pages", [6, 12])
def test_a_read_ahead_that_failed_is_tried_again_when_it_is_asked_for(file: Path, pages: int) -> None:
    plain = stream_of(file, pages)
    disk = Broken(file)
    stream = Stream([disk], plain.units, plain.memory, block=ALIGNED)
    for unit in range(len(PAGES)):
        disk.times = 1000
        with pytest.raises(CheckpointError, match="could not be read"):
            one_pass(stream, file)
        time.sleep(0.02)  # those behind it are read ahead, and fail
        disk.times = 0
        stream.acquire(unit)
        expect_there(stream, file, unit)
        stream.release(unit)


def test_a_file_that_was_cut_short_is_an_error(file: Path) -> None:
    stream = stream_of(file, 9)
    os.truncate(file, 12 * ALIGNED + 5)
    stream.acquire(1)
    stream.release(1)
    with pytest.raises(CheckpointError, match="it was cut short"):
        stream.acquire(4)


def test_a_file_that_was_removed_can_still_be_read(file: Path) -> None:
    stream, kept = stream_of(file, 5), file.read_bytes()
    file.unlink()
    stream.acquire(3)
    first, _ = stream.place(3)
    assert stream.memory[first : first + 2 * ALIGNED].numpy().tobytes() == kept[9 * ALIGNED : 11 * ALIGNED]


def test_a_bandwidth_is_kept(file: Path) -> None:
    stream = stream_of(file, 9, Throttle(100 * ALIGNED))  # 19 pages a pass
    began = time.perf_counter()
    for unit in range(len(PAGES)):
        stream.acquire(unit)
        stream.release(unit)
    took = time.perf_counter() - began
    assert 0.18 <= took < 2, "19 pages at 100 a second"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_too(file: Path) -> None:
    stream = stream_of(file, 9)
    stream.acquire(0)
    stream.release(0)
    child = os.fork()
    if child == 0:
        try:
            one_pass(stream, file)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_buffer_has_room_for_the_largest_unit_and_begins_at_a_page(file: Path) -> None:
    with pytest.raises(ContractError, match="expected at least 20480"):
        stream_of(file, 4)
    plain = stream_of(file, 6)
    with pytest.raises(ContractError, match="at a multiple of 4096"):
        Stream(plain.files, plain.units, torch.zeros(7 * ALIGNED, dtype=torch.uint8)[8:])


def test_units_lie_one_behind_the_other() -> None:
    assert offsets([3, 1, 5, 2, 4, 1, 3], 12) == [0, 3, 4, 9, 0, 4, 5]
    assert offsets([3, 5, 2], 5) == [0, 0, 0]


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), more=st.integers(0, 90))
def test_every_unit_has_a_place_within_the_buffer(sizes: list[int], more: int) -> None:
    capacity = max(sizes) + more
    places = [(start, start + size) for start, size in zip(offsets(sizes, capacity), sizes, strict=True)]
    assert all(start >= 0 and stop <= capacity for start, stop in places)
    for one, other in pairwise(places):
        least = max(0, one[1] - one[0] + other[1] - other[0] - capacity)
        assert shared(one, other) >= least
        if one[0] == 0 or one[1] == capacity:
            assert shared(one, other) == least, "neighbours share as little as they can"


def test_a_buffer_whose_length_is_no_multiple_of_a_page_is_used_up_to_the_last_one(file: Path) -> None:
    plain = stream_of(file, 6)
    stream = Stream(plain.files, plain.units, plain.memory[: 5 * ALIGNED + 100], block=ALIGNED)
    one_pass(stream, file)
    assert not any(stream.place(unit)[0] % ALIGNED for unit in range(len(PAGES)))


def test_where_two_units_have_no_room_they_share_as_little_as_they_can() -> None:
    assert offsets([2, 3, 3, 3, 2, 3], 5) == [0, 2, 0, 2, 0, 2]
    assert offsets([21, 33, 33, 33, 21, 33], 53) == [0, 20, 0, 20, 0, 20]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_how_far_is_read_ahead_can_be_bounded(file: Path, most: int) -> None:
    stream = stream_of(file, sum(PAGES))  # room for all
    stream.read_ahead(most)
    sizes = [size * ALIGNED for size in PAGES]
    for unit in range(len(PAGES)):
        stream.acquire(unit)
        expect_there(stream, file, unit)
        expected = sum(sizes[: unit + 1]) + sum((sizes * 2)[unit + 1 : unit + 1 + most])
        late = time.monotonic() + 10
        while stream.traffic.bytes < expected and time.monotonic() < late:
            time.sleep(0.001)
        time.sleep(0.01)
        assert stream.traffic.bytes == expected, "no unit is read earlier"
        stream.release(unit)
