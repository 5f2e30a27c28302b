"""Reads a file past the system's cache of files, where the system can do that.

Pages in that cache count as memory in use. They would also push out the pages of other files, among them those of the
next layers. Direct reads begin and end at multiples of `ALIGNED`, in the file and in memory.

Source: Linux, open(2), O_DIRECT.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from pathlib import Path

from foretoken.errors import CheckpointError

ALIGNED = 4096  # bytes: a multiple of the block size of all common disks


class DirectFile:
    """A file that is held open to be read at any place, by several threads at once. `direct` is False if the system
    refuses direct reads of it; then what was read is dropped from the cache of files again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor, self.direct = _opened(path)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read ({error.strerror}); see that you may read it, or fetch it again"
            ) from None
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, into: memoryview, offset: int) -> None:
        """Fill memory with the bytes from `offset` on. Where the file ends, the rest stays as it is.

        into: begins at a multiple of `ALIGNED`, like offset, and has a multiple as its length. Raises CheckpointError
        if the file gives fewer bytes than it had when it was opened, or cannot be read. What fails is tried twice.
        """
        expected = min(len(into), self.size - offset)
        try:
            self._fill(into, offset, expected)
        except OSError:
            try:
                self._fill(into, offset, expected)
            except OSError as error:
                why = "it was cut short" if error.errno == errno.ENODATA else error.strerror
                raise CheckpointError(
                    f"{self.path} could not be read at {offset:,} ({why}), twice in a row; see that the disk is there "
                    "and that nothing writes to the file, then load the model again"
                ) from None

    def _fill(self, into: memoryview, offset: int, expected: int) -> None:
        done = 0
        while done < expected:
            # a read that ends in the middle of a block is continued from the block's beginning
            from_ = done // ALIGNED * ALIGNED if self.direct else done
            got = os.preadv(self._descriptor, [into[from_:]], offset + from_)
            if from_ + got <= done:
                raise OSError(errno.ENODATA, "the file ends early")
            done = from_ + got
        if not self.direct:
            os.posix_fadvise(self._descriptor, offset, len(into), os.POSIX_FADV_DONTNEED)


def _opened(path: Path) -> tuple[int, bool]:
    """A descriptor, and whether its reads are direct."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):  # file systems in memory refuse it, and other systems have another way
        return os.open(path, os.O_RDONLY), False
    try:
        import mmap

        os.preadv(descriptor, [memoryview(mmap.mmap(-1, ALIGNED))], 0)  # some refuse it only at the first read
    except OSError:
        os.close(descriptor)
        return os.open(path, os.O_RDONLY), False
    return descriptor, True


class Throttle:
    """Slows reading down to a bandwidth, in bytes a second, as if the disk had no more. None: does nothing."""

    def __init__(self, bandwidth: float | None) -> None:
        self._bandwidth = bandwidth
        self._free = 0.0  # when the disk would be free again
        self._lock = threading.Lock()

    def begin(self, size: int) -> float:
        """To be called before a read of some bytes: when the slower disk would have them."""
        if self._bandwidth is None:
            return 0.0
        with self._lock:
            self._free = max(self._free, time.perf_counter()) + size / self._bandwidth
            return self._free

    def wait(self, until: float) -> None:
        """Wait until the slower disk would have the bytes."""
        left = until - time.perf_counter() if until else 0.0
        if left > 0:
            time.sleep(left)
