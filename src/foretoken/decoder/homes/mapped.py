"""The files from which weights are mapped, and a check whether they have changed.

A write to such a file changes the weights at once. If the file was cut short, a pass that reads beyond its end ends the
process (SIGBUS). The system gives no warning. The only check is to look at the file's size and time of last change,
between passes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from foretoken.errors import CheckpointError, ContractError


class MappedFiles:
    """Files as they were just before they were mapped.

    Each file is held open, so that the check looks at the mapped file and not at another with the same name. A file
    that was replaced or removed keeps its contents for a process that has mapped it.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._held: list[tuple[Path, int, os.stat_result]] = []
        for path in paths:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be read ({error.strerror}); see that you may read it, or fetch it again"
                ) from None
            weakref.finalize(self, os.close, descriptor)
            self._held.append((path, descriptor, os.fstat(descriptor)))

    def expect_names(self) -> None:
        """Raise CheckpointError if a file was replaced since it was opened: another file may have been mapped."""
        for path, _, was in self._held:
            try:
                same = os.path.samestat(os.stat(path), was)
            except OSError:
                same = False
            if not same:
                raise CheckpointError(f"{path} was replaced while it was being loaded; load it again")

    def expect_unchanged(self) -> None:
        """Raise CheckpointError if a file has changed."""
        error = self.changed()
        if error is not None:
            raise error

    def changed(self) -> CheckpointError | None:
        """The error if a file was written to or cut short; None if none was. Takes some microseconds for each file."""
        for path, descriptor, was in self._held:
            try:
                now = os.fstat(descriptor)
            except OSError:  # a file on a network may be gone
                now = None
            if now is None or (now.st_size, now.st_mtime_ns) != (was.st_size, was.st_mtime_ns):
                return CheckpointError(
                    f"{path} has changed since it was loaded{_sizes(was, now)}, and the model reads its weights there: "
                    "what came since cannot be trusted; load the model again, with weights 'copied' if the file goes "
                    "on changing"
                )
        return None


def forget(tensor: torch.Tensor) -> None:
    """Take the pages of a mapped tensor out of the process's memory. They are read again when they are used: from the
    system's cache of files, or from the disk. Does nothing where the system has no `/proc/self/maps` or no `madvise`,
    nor with memory that is no mapped file: that would lose what it holds. The tensor must never have been written to.
    Raises ContractError for one that is not contiguous."""
    if not tensor.is_contiguous():
        raise ContractError("a tensor that is not contiguous came; expected one whose pages are its own")
    first, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    start, stop = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop and hasattr(mmap, "MADV_DONTNEED") and any(a <= start and stop <= b for a, b in _of_files()):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def _of_files() -> Iterator[tuple[int, int]]:
    """The addresses of this process's mappings of files. Source: proc_pid_maps(5)."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        addresses, _, _, _, inode, *_ = line.split()
        if int(inode):
            first, _, stop = addresses.partition("-")
            yield int(first, 16), int(stop, 16)


def _sizes(was: os.stat_result, now: os.stat_result | None) -> str:
    if now is None or now.st_size == was.st_size:
        return ""
    return f" (it had {was.st_size:,} bytes, and has {now.st_size:,})"
