"""Signals while something large is written, or something long goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foretoken.cli.common import say


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


@contextmanager
def telling_how_to_go_on(how: Callable[[], str]) -> Iterator[None]:
    """Within it, Ctrl-C raises KeyboardInterrupt, and then ends the process with a line that says what is kept."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as by nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {how()}")
        if before is signal.SIG_DFL:  # as in a process of our own: nobody waits for the exception
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
