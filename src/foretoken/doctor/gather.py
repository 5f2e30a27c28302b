"""Collects all facts about the machine, in an order in which no measurement disturbs a later one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

from foretoken.doctor import fits
from foretoken.doctor.facts import QUICK, Facts, MemorySpeed
from foretoken.doctor.machine import allowed_cores, core_times, look, look_around, steal
from foretoken.errors import NativeError


def gather(
    *, model: str | None = None, quick: bool = False, saying: Callable[[str], None] = lambda what: None
) -> Facts:
    """All facts. model: a model to examine. quick: measure no speeds. saying: called with what is being done. Raises
    ModelNotFoundError if there is no such model, NativeError if PyTorch does not load."""
    allowed = allowed_cores()  # first: importing PyTorch may bind this process to fewer cores
    saying("looking around")
    folder, whole = (None, True) if model is None else fits.find(model)
    busy, began = look_around(), core_times()
    saying("looking at PyTorch and the engine")
    expect_torch()
    from foretoken.doctor import engine, speed  # which import PyTorch

    threads, native = engine.threads(allowed), engine.engine()
    pages = speed.huge_pages()
    memory: MemorySpeed | None = None
    why: str | None = QUICK
    disk = replace(speed.place_of_models(folder), not_measured=QUICK)
    if not quick:
        saying("measuring the speed of memory")
        memory, why = speed.memory_speed(threads.torch, native.isa)
        saying("measuring the speed of the disk")
        disk = speed.disk_speed(replace(disk, not_measured=None))
        if memory is not None:
            saying("measuring the speed of memory once more")
            memory = speed.better_of(memory, threads.torch, native.isa)
    machine = look(allowed, busy, steal(began))
    checkpoint, shape = None, None
    if model is not None and folder is not None:
        checkpoint, shape = fits.examine(model, folder, native.isa, whole=whole)
    speeds = (machine.memory_available, None if memory is None else memory.best, disk.direct)
    return Facts(
        versions=engine.versions(),
        untested=engine.untested(),
        machine=machine,
        engine=native,
        threads=threads,
        huge_pages=pages,
        memory_speed=memory,
        memory_not_measured=why,
        disk=disk,
        parts=engine.parts(),
        gpus=engine.gpus(),
        checkpoint=checkpoint,
        fits=fits.fitting(checkpoint, shape, *speeds),
    )


def expect_torch() -> None:
    """Raise a NativeError if PyTorch does not load: nothing runs without it, and little can be found out."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise NativeError(
            f"PyTorch does not load ({error}); lift `ulimit -v` if memory is limited, else install PyTorch again"
        ) from None
