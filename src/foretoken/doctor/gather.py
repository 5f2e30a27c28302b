"""Asks the machine for all facts, in an order in which no question disturbs the answer to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foretoken.doctor import fits, speed
from foretoken.doctor.engine import engine, expect_torch, gpus, parts, threads, untested, versions
from foretoken.doctor.facts import QUICK, Checkpoint, Facts, Fitting, MemorySpeed
from foretoken.doctor.machine import Watch, allowed_cores, look, look_around
from foretoken.rehearsal.shapes import SHAPES, Shape


def gather(
    *, model: str | None = None, quick: bool = False, saying: Callable[[str], None] = lambda what: None
) -> Facts:
    """Everything that can be known. model: one to look at more closely. quick: measure no speeds. saying: is told what
    is being done. Raises ModelNotFoundError where there is no such model, NativeError where PyTorch does not load."""
    allowed = allowed_cores()  # first: to import PyTorch may bind this process to fewer
    saying("looking around")
    folder, whole = (None, True) if model is None else fits.find(model)
    busy, watch = look_around(), Watch()
    saying("looking at PyTorch and the engine")
    expect_torch()
    about_threads, about_engine = threads(allowed), engine()
    pages = speed.huge_pages()
    memory: MemorySpeed | None = None
    why: str | None = QUICK
    disk = replace(speed.place_of_models(folder), not_measured=QUICK)
    if not quick:
        saying("measuring the speed of memory")
        memory, why = speed.memory_speed(about_threads.torch, about_engine.isa)
        saying("measuring the speed of the disk")
        disk = speed.disk_speed(replace(disk, not_measured=None))
        if memory is not None:
            saying("measuring the speed of memory once more")
            memory = speed.better_of(memory, about_threads.torch, about_engine.isa)
    machine = look(allowed, busy, watch.steal())
    checkpoint, shape = None, None
    if model is not None and folder is not None:
        checkpoint, shape = fits.examine(model, folder, about_engine.isa, whole=whole)
    speeds = (machine.memory_available, None if memory is None else memory.best, disk.direct)
    return Facts(
        versions=versions(),
        untested=untested(),
        machine=machine,
        engine=about_engine,
        threads=about_threads,
        huge_pages=pages,
        memory_speed=memory,
        memory_not_measured=why,
        disk=disk,
        parts=parts(),
        gpus=gpus(),
        checkpoint=checkpoint,
        fits=_fits(checkpoint, shape, *speeds),
    )


def _fits(
    checkpoint: Checkpoint | None, shape: Shape | None, available: int | None, memory: float | None, disk: float | None
) -> tuple[Fitting, ...]:
    """The model that was asked about, in its own format and others, or models of usual sizes."""
    speeds = (available, memory, disk)
    if checkpoint is None:
        return tuple(fits.fitting(SHAPES[name], fits.FORMATS, *speeds) for name in fits.SHOWN)
    if shape is None or checkpoint.format is None:
        return ()
    return (fits.fitting(shape, fits.formats_of(checkpoint.format), *speeds),)
