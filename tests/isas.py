"""The instruction sets that tests run on this machine, and how to force one."""

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
    for decided in (native.module, native.isa, kernels._argmax, kernels._rank, kernels._log_total):
        decided.cache_clear()


@contextmanager
def with_isa(isa: str) -> Iterator[None]:
    """Decoders that are made here run with this instruction set, then and later."""
    before = os.environ.get("FORETOKEN_ISA")
    os.environ["FORETOKEN_ISA"] = isa
    forget()
    try:
        yield
    finally:
        os.environ.pop("FORETOKEN_ISA")
        if before is not None:
            os.environ["FORETOKEN_ISA"] = before
        forget()
