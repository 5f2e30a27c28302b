"""Processor, cores and memory, and the other processes that use them."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from foretoken.common.limits import control_groups, memory_limit, text_of
from foretoken.common.provenance import processor
from foretoken.doctor.facts import Busy, Machine

_WATCH = 0.25  # seconds
_FEW = 3  # busiest processes that are reported
_LEAST = 0.1  # of a core: a process that uses less is not busy
_UNTOLD = (psutil.Error, OSError)  # raised where the system has no answer, such as one without /proc


def look_around() -> tuple[float | None, tuple[Busy, ...]]:
    """Cores that other processes use now, and the busiest of them. Watches for a quarter of a second, doing nothing."""
    try:
        list(psutil.process_iter(["cpu_percent"]))  # psutil counts the use of each process from here on
        began = time.process_time()
        used = psutil.cpu_percent(_WATCH) / 100 * (os.cpu_count() or 1)
        own = (time.process_time() - began) / _WATCH
        found = [(one.pid, one.info) for one in psutil.process_iter(["name", "cpu_percent"])]
    except _UNTOLD:
        return None, ()
    each = [Busy(info["name"] or "", pid, (info["cpu_percent"] or 0.0) / 100) for pid, info in found]
    others = sorted((one for one in each if one.pid != os.getpid()), key=lambda one: -one.cores)
    return max(0.0, used - own), tuple(one for one in others[:_FEW] if one.cores >= _LEAST)


def core_times() -> dict[str, float] | None:
    """Seconds of the cores' time since the system began, by what they were spent on."""
    times = _told(psutil.cpu_times)
    if times is None:
        return None
    return {name: spent for name, spent in times._asdict().items() if not name.startswith("guest")}  # user has them


def steal(before: dict[str, float] | None) -> float | None:
    """The share of the cores' time that the host gave to others since `before`; within a second, since the boot."""
    now = core_times()
    if now is None or before is None or "steal" not in now:
        return None
    since = {name: now[name] - before[name] for name in now}
    times = since if sum(since.values()) > (os.cpu_count() or 1) else now
    return times["steal"] / whole if (whole := sum(times.values())) else None


def allowed_cores() -> frozenset[int]:
    """The cores that this thread may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def look(
    allowed: frozenset[int],
    busy: tuple[float | None, tuple[Busy, ...]],
    stolen: float | None,
    root: Path = Path("/"),
) -> Machine:
    """The machine's facts. allowed: the cores that this process could use before any import bound it to fewer."""
    groups, memory, flags = control_groups(root), _told(psutil.virtual_memory), cpu_flags(root)
    total, available = (memory.total, memory.available) if memory else (None, None)
    limit, left, by = memory_limit(groups, total)
    return Machine(
        processor=processor(),
        architecture=platform.machine(),
        system=_system(),
        virtual=None if flags is None else "hypervisor" in flags,
        cores=os.cpu_count() or 1,
        allowed_cores=len(allowed),
        physical_cores=_physical_cores(allowed, root),
        core_quota=groups.cores if groups.cores is not None and groups.cores < len(allowed) else None,
        memory_total=total,
        memory_available=min((n for n in (available, left) if n is not None), default=None),
        memory_limit=limit,
        memory_limited_by=by,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        busy_cores=busy[0],
        busiest=busy[1],
        steal=stolen,
    )


def cpu_flags(root: Path = Path("/")) -> frozenset[str] | None:
    """The processor's features that the system shows."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return frozenset(found[1].split()) if found else None


def file_system(folder: Path) -> str | None:
    """The kind of file system that holds the folder, by its deepest mount."""
    place = folder.resolve()
    kinds = {Path(one.mountpoint): one.fstype for one in _told(psutil.disk_partitions, all=True) or ()}
    return next((kinds[mount] for mount in (place, *place.parents) if mount in kinds), None)


def _told(ask: Callable[..., Any], **options: Any) -> Any:
    """psutil's answer; None where the system has none."""
    with suppress(*_UNTOLD):
        return ask(**options)
    return None


def _physical_cores(allowed: frozenset[int], root: Path) -> int | None:
    """Physical cores among the allowed cores: cores with the same thread siblings count once."""
    place = root / "sys/devices/system/cpu"
    siblings = {text_of(place / f"cpu{i}/topology/thread_siblings_list") for i in allowed}
    return None if "" in siblings else len(siblings)


def _system() -> str:
    pretty = ""
    with suppress(OSError):
        pretty = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    return f"{platform.system()} {platform.release()}{f', {pretty}' if pretty else ''}"
