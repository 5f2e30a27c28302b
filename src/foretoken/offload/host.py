"""Layers that lie in the machine's memory, and are copied to a GPU in each pass.

They are read like a file, by `Stream`, whose buffer then lies in the GPU's memory. Each of its readers copies on a CUDA
stream of its own, beside the stream on which passes compute. A reader says that a part is there only when the copy has
ended. And no copy that a release has made possible begins before the GPU has computed with the part that was released.
So neither side overtakes the other.

Source: Wang et al. 2025 (SubSpec), "Asynchronous data transfer": the next layer is copied while the present one
computes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from foretoken.errors import SettingError
from foretoken.offload.stream import Streamed


class HostMemory:
    """Bytes of the machine's memory, to be read by `Stream`. memory: uint8, on the CPU."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._own = threading.local()  # a CUDA stream for each reader
        self._used: torch.cuda.Event | None = None  # behind the last part that was released

    def read(self, into: torch.Tensor | memoryview, offset: int) -> None:
        """Fill a part of a buffer with the bytes from `offset` on. The copy has ended when this returns."""
        piece = self.memory[offset : offset + len(into)]
        if not isinstance(into, torch.Tensor):
            torch.frombuffer(into, dtype=torch.uint8).copy_(piece)
            return
        stream, used = self._stream(into.device), self._used
        if used is not None:
            stream.wait_event(used)
        with torch.cuda.stream(stream):
            into.copy_(piece, non_blocking=True)
        stream.synchronize()

    def released(self, device: torch.device) -> None:
        """To be called before a part is released: what was given to the device until now may still read it."""
        if device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._used = event

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream: torch.cuda.Stream = self._own.stream
        return stream


@dataclass(frozen=True)
class Copied(Streamed):
    """The home of one unit, for a pass that uses it (`foretoken.decoder.homes.parts`)."""

    host: HostMemory = field(kw_only=True)

    def release(self) -> None:
        """Its place may be used for others when the GPU has computed with it."""
        self.host.released(self.stream.memory.device)
        super().release()


_bounded: set[torch.device] = set()  # by `bound_memory`


def bound_memory(device: torch.device, bound: int, besides: int) -> None:
    """From now on PyTorch takes no more of a GPU's memory, in this process, than a bound, in bytes, leaves beside
    `besides` bytes that it does not count. Raises SettingError for a bound that the GPU does not have."""
    if device.type != "cuda":
        return
    device = _numbered(device)
    total = torch.cuda.get_device_properties(device).total_memory
    if bound > total:
        raise SettingError(f"memory is {bound:,} bytes, and the GPU {device} has {total:,}; allow no more than that")
    _bounded.add(device)
    torch.cuda.set_per_process_memory_fraction(max(bound - besides, 0) / total, device)


def unbound_memory(device: torch.device) -> None:
    """From now on PyTorch takes as much of a GPU's memory as there is, if it was bounded here."""
    if device.type == "cuda" and (device := _numbered(device)) in _bounded:
        _bounded.remove(device)
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _numbered(device: torch.device) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
