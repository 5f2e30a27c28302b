"""A disk with faults, under a model whose layers are read from it in each pass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import ForetokenError
from foretoken.offload import direct
from foretoken.rehearsal import write
from foretoken.rehearsal.shapes import shape_of

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
COUNT = 120  # tokens
PATIENCE = 60  # seconds that a generation may take, which needs a fraction of one

T = TypeVar("T")
Read = Callable[[int, Any, int], int]
Fault = Callable[[Read, int, Any, int], int]


class Disk:
    """What `os.preadv` does while a fault is set: every read of a stream is one. `hits` counts what the fault did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Fault | None = None
        self.hits = 0
        real = os.preadv

        def preadv(descriptor: int, into: Any, offset: int) -> int:
            fault = self.fault
            return real(descriptor, into, offset) if fault is None else fault(real, descriptor, into, offset)

        monkeypatch.setattr(direct.os, "preadv", preadv)

    def fail(self, share: float, seed: int, *, twice: bool) -> None:
        """A share of the reads fail. twice: and so do those that repeat them."""
        chance, own = Random(seed), threading.local()

        def fault(real: Read, descriptor: int, into: Any, offset: int) -> int:
            if chance.random() < share and (twice or not getattr(own, "failed", False)):
                own.failed = True
                self.hits += 1
                raise OSError(5, "Input/output error")
            own.failed = False
            return real(descriptor, into, offset)

        self.fault = fault

    def delay(self, share: float, seconds: float, seed: int) -> None:
        """A share of the reads take some seconds more: all delays together at most a third of the patience."""
        chance, most = Random(seed), int(PATIENCE / 3 / seconds)

        def fault(real: Read, descriptor: int, into: Any, offset: int) -> int:
            if chance.random() < share and self.hits < most:
                self.hits += 1
                time.sleep(seconds)
            return real(descriptor, into, offset)

        self.fault = fault

    def shorten(self, share: float, seed: int) -> None:
        """A share of the reads give less than was asked for, and leave nonsense behind it."""
        chance = Random(seed)

        def fault(real: Read, descriptor: int, into: Any, offset: int) -> int:
            count = real(descriptor, into, offset)
            if count > 1 and chance.random() < share:
                self.hits += 1
                count = chance.randrange(1, count)
                rest = memoryview(into[0])[count:]
                rest[:] = bytes(len(rest))
            return count

        self.fault = fault


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose files a test may damage."""
    return shutil.copytree(EMBEDDED["stdlib-7m"], tmp_path / "model")


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    """What the model in memory says."""
    model = foretoken.load("stdlib-7m", draft="none", weights="copied")
    return model.generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True).tokens


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 115 MB, with the text of a small one."""
    place = tmp_path_factory.mktemp("rehearsal") / "large"
    shape = shape_of("hidden=768,layers=8,heads=12,kv-heads=6,intermediate=2048,vocab=4096")
    write.write(write.plan(EMBEDDED["stdlib-7m"], place, write.Asked(shape)))
    return place


BOUNDED = """
import json, sys
model, lacking, draft, prompt, count, verify, group = json.loads(sys.argv[1])
if group is not None:
    with open(group + "/cgroup.procs", "w") as procs:
        procs.write("0")  # before the imports: what is in use already would not count

import foretoken
from foretoken.api.build import plan
from foretoken.bench.bounded import peak_memory

found, _ = plan(model, memory="100GiB", draft=draft, context=512)
bound = found.plan.total - lacking
model = foretoken.load(model, memory=bound, draft=draft, context=512, verify_weights=verify)
tokens = [model.generate(prompt, max_new_tokens=count, ignore_eos=True).tokens for _ in range(2)]
print(json.dumps([bound, peak_memory(), model.target.home, tokens]))
"""


def bounded(model: Path, draft: str, *, verify: bool = False, group: Path | None = None) -> tuple[int, int]:
    """Generate twice in a process of its own, in which memory lacks for 40 MB of the model, and see that the text is
    the model's. Returns the bound and the most memory that was in use. group: a control group for the process."""
    asked = [str(model), 40_000_000, draft, PROMPT, 40, verify, None if group is None else str(group)]
    command = [sys.executable, "-c", BOUNDED, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    bound, peak, home, tokens = json.loads(done.stdout.splitlines()[-1])
    assert home == "copied and streamed"
    assert tokens == [list(generated(foretoken.load(model, draft="none"))[:40])] * 2
    return bound, peak


def within(call: Callable[[], T], seconds: float = PATIENCE) -> T:
    """What a call gives or raises, in a thread of its own; an AssertionError if it hangs."""
    came: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            came.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"it hangs: nothing came in {seconds} s"
    if failed:
        raise failed[0]
    return came[0]


def generated(model: foretoken.Model) -> tuple[int, ...]:
    return within(lambda: model.generate(PROMPT, max_new_tokens=COUNT, ignore_eos=True).tokens)


def until_it_fails(model: foretoken.Model, after: int, then: Callable[[], object]) -> tuple[tuple[int, ...], str]:
    """Tokens of a stream in which something happens after some tokens, and the error that ends it."""
    came: list[int] = []

    def run() -> None:
        stream = model.stream(PROMPT, max_new_tokens=COUNT, ignore_eos=True)
        came.extend(next(stream).token for _ in range(after))
        then()
        came.extend(piece.token for piece in stream)

    with pytest.raises(ForetokenError) as error:
        within(run)
    return tuple(came), str(error.value)
