"""Passes on a GPU that were recorded, and can be repeated as a whole: CUDA graphs.

All recordings of a decoder are made on one stream, on which those of no other decoder are made, and have memory of
their own. They are dropped together: PyTorch frees what its libraries need on a stream when one of the graphs that were
recorded there is dropped.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.kernels.gpu import RowsOnDevice

_SEEN_FIRST = 1  # passes of a kind that run before one is recorded: the first one compiles kernels, and tests rows
_alone = threading.Lock()  # PyTorch records one graph at a time in a process
# streams on which nothing is recorded, by device: PyTorch hands out each of its 32 again and again
_free: defaultdict[torch.device, list[torch.cuda.Stream]] = defaultdict(list)


@dataclass
class Recording:
    """A pass that can be repeated. numbers: where it reads what it needs to know of its rows. hidden: what it puts
    out."""

    graph: torch.cuda.CUDAGraph
    numbers: torch.Tensor
    hidden: torch.Tensor

    def repeat(self, numbers: torch.Tensor) -> torch.Tensor:
        """The hidden states for other rows."""
        self.numbers.copy_(numbers)
        self.graph.replay()
        return self.hidden.clone()  # the next recording that is repeated may use this memory


class Recordings:
    """The recordings of one decoder."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: dict[Hashable, Recording] = {}
        self._seen: dict[Hashable, int] = {}
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None  # the memory of recordings

    def __len__(self) -> int:
        return len(self._made)

    def get(
        self, kind: Hashable, rows: Callable[[], RowsOnDevice], run: Callable[[RowsOnDevice], torch.Tensor]
    ) -> Recording | None:
        """The recording of a kind of pass; None if such a pass should run once more first. rows: as the recording is to
        know them. run: the pass."""
        if kind not in self._made:
            self._seen[kind] = self._seen.get(kind, 0) + 1
            if self._seen[kind] <= _SEEN_FIRST:
                return None
            self._record(kind, rows, run)
        return self._made[kind]

    def drop(self) -> None:
        """Forget all recordings. What has run before will be recorded at once when it comes again."""
        self._made.clear()
        self._pool = None

    def _record(
        self, kind: Hashable, rows: Callable[[], RowsOnDevice], run: Callable[[RowsOnDevice], torch.Tensor]
    ) -> None:
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        with _alone, torch.inference_mode(False), _nothing_collected():
            try:
                stream, where = self._its_stream(), rows()
                torch.cuda.synchronize(self._device)
                with torch.cuda.stream(stream):
                    run(where)  # so that this thread's libraries have what they need on this stream
                torch.cuda.synchronize(self._device)
                # another thread may wait for the GPU meanwhile
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode=mode):
                    hidden = run(where)
                self._pool = graph.pool()
                self._made[kind] = Recording(graph, where.numbers, hidden)
            except BaseException:  # Ctrl-C, at any instruction: PyTorch leaves everything as it is
                self._break_off(graph, before)
                raise

    def _break_off(self, graph: torch.cuda.CUDAGraph, before: torch.cuda.Stream) -> None:
        if self._stream is not None:
            torch.cuda.set_stream(self._stream)
            if torch.cuda.is_current_stream_capturing():
                with suppress(RuntimeError):  # what was recorded may be of no use
                    graph.capture_end()
        torch.cuda.set_stream(before)
        with suppress(RuntimeError):
            torch.cuda.synchronize(self._device)
        with suppress(RuntimeError):
            graph.reset()
        self.drop()

    def _its_stream(self) -> torch.cuda.Stream:
        if self._stream is None:
            free = _free[self._device]
            # of high priority: PyTorch has others for these, so no thread that copies gets the same
            self._stream = free.pop() if free else torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
            weakref.finalize(self, _end, self._made, self._device, self._stream).atexit = False
        return self._stream


def _end(made: dict[Hashable, Recording], device: torch.device, stream: torch.cuda.Stream) -> None:
    made.clear()
    _free[device].append(stream)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Within it, Python collects no garbage. That could end another model, which a recording would not survive."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
