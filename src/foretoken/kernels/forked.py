"""Threads in a forked child: the child has none of its parent's threads, and PyTorch would wait for them for ever."""

from __future__ import annotations

import os

import torch

_settled: dict[int, int] = {os.getpid(): 0}  # by process: the threads that PyTorch had before the fork, or 0


def settle() -> None:
    """In a forked child, make PyTorch compute on one thread from now on. In any other process, do nothing.

    A child is recognised if this module was imported before the fork. It cannot be known whether PyTorch had used its
    threads by then.
    """
    if os.getpid() not in _settled:
        _settled[os.getpid()] = max(_settled.values()) or torch.get_num_threads()  # inherited by a child of a child
        torch.set_num_threads(1)


def threads() -> int:
    """The default number of threads for native arithmetic: as many as PyTorch has, or had before a fork."""
    return _settled.get(os.getpid(), 0) or torch.get_num_threads()


def lost() -> bool:
    """Whether this is a settled forked child, in which PyTorch must not use more than one thread."""
    return _settled.get(os.getpid(), 0) > 0
