"""A forked child has none of its parent's threads, and PyTorch would wait for its own for ever."""

from __future__ import annotations

import os

import torch

_settled: dict[int, int] = {os.getpid(): 0}  # processes, and how many threads PyTorch had where it lost them


def settle() -> None:
    """In a forked child, make PyTorch compute on one thread from here on; elsewhere nothing.

    A child is known by this module having been imported before the fork. Whether PyTorch had used its threads by then
    cannot be known.
    """
    if os.getpid() not in _settled:
        _settled[os.getpid()] = max(_settled.values()) or torch.get_num_threads()  # a child's child has its number
        torch.set_num_threads(1)


def threads() -> int:
    """How many threads native arithmetic takes, where nobody says: as many as PyTorch has, or had before a fork."""
    return _settled.get(os.getpid(), 0) or torch.get_num_threads()


def lost() -> bool:
    """Whether this is a forked child that was settled: PyTorch must not use more than one thread."""
    return _settled.get(os.getpid(), 0) > 0
