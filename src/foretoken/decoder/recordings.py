"""Passes on a GPU that were recorded, and can be repeated as a whole: CUDA graphs.

All recordings of a decoder have a stream and memory of their own, in which one after the other runs. They are dropped
together, because PyTorch frees what its libraries need on a stream when one of the graphs recorded there is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from foretoken.kernels.gpu import RowsOnDevice

_SEEN_FIRST = 1  # passes of a kind that run before one is recorded: the first one compiles kernels, and tests rows
_alone = threading.Lock()  # PyTorch records one graph at a time in a process


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
        self._pool: Any = None

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
            self._made[kind] = self._recorded(rows(), run)
        return self._made[kind]

    def drop(self) -> None:
        """Forget all recordings. What has run before will be recorded at once when it comes again."""
        self._made.clear()
        self._pool = None

    def _recorded(self, rows: RowsOnDevice, run: Callable[[RowsOnDevice], torch.Tensor]) -> Recording:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        with _alone:
            torch.cuda.synchronize(self._device)
            with torch.cuda.stream(self._stream):
                run(rows)  # so that this thread's libraries have what they need on this stream
            torch.cuda.synchronize(self._device)
            try:
                # another thread may wait for the GPU meanwhile
                mode = "thread_local"
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
                    hidden = run(rows)
            except BaseException:
                torch.cuda.set_stream(before)  # PyTorch leaves it where recording failed
                self.drop()
                raise
        self._pool = graph.pool()
        return Recording(graph, rows.numbers, hidden)
