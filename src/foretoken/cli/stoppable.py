"""Signals while something large is written."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it, a signal that ends the process first lets what was begun be taken away, gigabytes perhaps."""

    def stop(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends it at once
        raise _Stopped(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # as by nohup
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    except _Stopped as stopped:
        os.kill(os.getpid(), stopped.number)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
