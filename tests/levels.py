"""The instruction levels that tests run on this machine, and how to force one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from foretoken import kernels
from foretoken.kernels import native

# empty where there is no native module
HERE = native.testable()


def forget() -> None:
    """Decide anew which implementations run, as a fresh process would."""
    for decided in (native.module, native.level, kernels._argmax, kernels._rank):
        decided.cache_clear()


@contextmanager
def at_level(level: str) -> Iterator[None]:
    """Decoders that are made here run at this level, then and later."""
    before = os.environ.get("FORETOKEN_LEVEL")
    os.environ["FORETOKEN_LEVEL"] = level
    forget()
    try:
        yield
    finally:
        os.environ.pop("FORETOKEN_LEVEL")
        if before is not None:
            os.environ["FORETOKEN_LEVEL"] = before
        forget()
