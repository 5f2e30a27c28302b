"""Work on slices of a weight, on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def on_threads(work: Callable[[int], None], items: Sequence[int], threads: int | None) -> None:
    """Call `work` for each item, on threads that use one torch thread each. threads: by default as many as torch has.

    Torch's own threads would wait for each other after each operation, hundreds of times here. If another program takes
    a core now and then, they would wait most of the time.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(threads or before, len(items)), initializer=torch.set_num_threads, initargs=(1,))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # for threads that begin later
