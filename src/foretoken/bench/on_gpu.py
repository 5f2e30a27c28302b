"""What a GPU says of itself: how fast it gets layers from the machine's memory, and how much of its own is used."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from foretoken.decoder.on_device import host_memory
from foretoken.offload.host import HostMemory

_PROBE = 256 << 20  # bytes
_TIMES = 4


def bus_speed(device: torch.device) -> float:
    """Bytes a second of copies to a device, as layers are copied in a pass."""
    source = HostMemory(host_memory(_PROBE, device))
    to = torch.empty(_PROBE, dtype=torch.uint8, device=device)
    return _speed(lambda: source.read(to, 0))


def _speed(move: Callable[[], object]) -> float:
    move()  # the first one sets things up
    began = time.perf_counter()
    for _ in range(_TIMES):
        move()
    return _TIMES * _PROBE / (time.perf_counter() - began)


def peak_memory(device: torch.device) -> int:
    """The most bytes of a GPU's memory that this process has used, if it has the GPU for itself: what PyTorch took, and
    what CUDA and its libraries take now."""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    return torch.cuda.max_memory_reserved(device) + others


def name_of(device: torch.device) -> str:
    """The GPU's name."""
    return torch.cuda.get_device_name(device)
