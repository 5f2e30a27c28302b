"""Machines that tests do not have: facts that can be changed one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretoken.doctor.facts import (
    Amx,
    Disk,
    Engine,
    Facts,
    HugePages,
    Machine,
    MemorySpeed,
    Part,
    Threads,
)
from foretoken.doctor.findings import Finding, judge

GIB = 1 << 30

GOOD = Facts(
    versions={"python": "3.12.1", "foretoken": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
    untested=(),
    machine=Machine(
        processor="A processor",
        architecture="x86_64",
        system="Linux 6.8",
        virtual=False,
        cores=4,
        allowed_cores=4,
        physical_cores=4,
        core_quota=None,
        memory_total=32 * GIB,
        memory_available=24 * GIB,
        memory_limit=None,
        memory_limited_by=None,
        load=0.1,
        busy_cores=0.0,
        busiest=(),
        steal=0.0,
    ),
    engine=Engine(
        native="here",
        error=None,
        isa="amx",
        best="amx",
        forced=None,
        lacking={},
        unbuilt=(),
        compiler="/usr/bin/c++",
        amx=Amx(("amx_tile", "amx_bf16", "amx_int8"), None),
        rows_alike=None,
    ),
    threads=Threads(torch=4, environment={}, bound_cores=None, spin_ms=5.0),
    huge_pages=HugePages("madvise", False, 1.0),
    memory_speed=MemorySpeed(33.3e9, 29.7e9, {"huge": 8, "small": 4}, 4, GIB, "native"),
    memory_not_measured=None,
    disk=Disk("/models", True, 100 * GIB, False, "model.safetensors", GIB, 1.4e9, 8e9),
    parts=(Part("matplotlib", "3.10.0", "pictures: --plot", "matplotlib>=3.8"),),
    gpus=(),
)


def machine(**changes: dict[str, Any]) -> Facts:
    """The good machine, but for some fields: machine(threads={"torch": 64})."""
    return replace(
        GOOD,
        **{
            name: replace(getattr(GOOD, name), **change) if isinstance(change, dict) else change
            for name, change in changes.items()
        },
    )


def findings_of(facts: Facts) -> dict[str, Finding]:
    """All findings by topic."""
    found = [finding for group in judge(facts).values() for finding in group]
    assert len({finding.topic for finding in found}) == len(found), "two findings have the same topic"
    return {finding.topic: finding for finding in found}
