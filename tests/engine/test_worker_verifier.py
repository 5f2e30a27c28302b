"""The thread of a verifier that works in one: when it ends."""

from __future__ import annotations

import gc
import threading

import pytest

from foretoken.decoder.caches import Caches
from foretoken.sampling.sampler import Sampler
from foretoken.text.stopping import never
from foretoken.verification.local import LocalVerifier
from foretoken.verification.worker import WorkerVerifier
from tests.world import make_world


def started() -> tuple[WorkerVerifier, threading.Thread]:
    """A verifier whose thread runs, and that thread."""
    before = set(threading.enumerate())
    verifier = WorkerVerifier(LocalVerifier(make_world().target, Caches(), samplers=Sampler, stops=lambda _: never))
    verifier.forget(1)
    (thread,) = (one for one in threading.enumerate() if one not in before)
    return verifier, thread


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_its_thread_ends(closed: bool) -> None:
    verifier, thread = started()
    assert thread.is_alive()
    if closed:
        verifier.close()
    else:
        del verifier
        gc.collect()
    thread.join(10)
    assert not thread.is_alive()
