"""Slices of a weight on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def on_threads(work: Callable[[int], None], items: Sequence[int], threads: int | None) -> None:
    """Do a piece of work for each item, on threads on which torch uses one; as many as torch has, if not given.

    Torch's own threads wait for each other after every operation, of which there are hundreds here: where another
    program takes a core now and then, that is most of the time.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(threads or before, len(items)), initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # what threads that begin later get
