"""Processor, cores and memory, and who else uses them."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from foretoken.common.limits import control_groups, meminfo, memory_limit, text_of
from foretoken.common.provenance import processor
from foretoken.doctor.facts import Busy, Machine

_WATCH = 0.25  # seconds
_FEW = 3  # of the busiest processes are told
_LEAST = 0.1  # of a core: who uses less is not busy
_STEAL = 7  # in a line of /proc/stat, after its name: user nice system idle iowait irq softirq steal
_IDLE = (3, 4)


class Watch:
    """Looks at what the system counts, now and later: cores in use, and time that the host gave to others."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._times = self._read()
        self._processes = self._each()
        self._began = time.monotonic()

    def busy(self) -> tuple[float | None, tuple[Busy, ...]]:
        """Cores in use since then, and by whom; this process does not count."""
        passed = time.monotonic() - self._began
        spent = self._each()
        tick = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        each = [
            Busy(name, pid, (ticks - self._processes.get(pid, (name, ticks))[1]) / tick / passed)
            for pid, (name, ticks) in spent.items()
        ]
        own = sum(one.cores for one in each if one.pid == os.getpid())
        busiest = sorted((b for b in each if b.cores >= _LEAST and b.pid != os.getpid()), key=lambda b: -b.cores)
        delta = self._delta()
        if not delta:
            return None, ()
        whole = sum(delta)
        used = (whole - sum(delta[i] for i in _IDLE)) / whole * (os.cpu_count() or 1) if whole else 0.0
        return max(0.0, used - own), tuple(busiest[:_FEW])

    def steal(self) -> float | None:
        """The share of the cores' time that the host gave to others: since then; within a second, since the boot."""
        delta = self._delta() if time.monotonic() - self._began > 1 else self._read()
        whole = sum(delta)
        return delta[_STEAL] / whole if len(delta) > _STEAL and whole else None

    def _delta(self) -> list[int]:
        return [after - before for after, before in zip(self._read(), self._times, strict=False)]

    def _read(self) -> list[int]:
        lines = text_of(self._root / "proc/stat").splitlines()
        return [int(word) for word in lines[0].split()[1:9]] if lines and lines[0].startswith("cpu ") else []

    def _each(self) -> dict[int, tuple[str, int]]:
        """Name and ticks of every process, by its number."""
        found = {}
        try:
            numbers = [int(entry) for entry in os.listdir(self._root / "proc") if entry.isdigit()]
        except OSError:
            return {}
        for pid in numbers:
            head, _, tail = text_of(self._root / f"proc/{pid}/stat").rpartition(")")
            words = tail.split()
            if len(words) > 12:  # it may have ended just now
                found[pid] = (head.partition("(")[2], int(words[11]) + int(words[12]))
        return found


def look_around() -> tuple[float | None, tuple[Busy, ...]]:
    """What other processes use just now: watches for a quarter of a second, doing nothing."""
    watch = Watch()
    time.sleep(_WATCH)
    return watch.busy()


def allowed_cores() -> frozenset[int]:
    """The cores that this thread may run on, by number."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def look(
    allowed: frozenset[int],
    busy: tuple[float | None, tuple[Busy, ...]],
    steal: float | None,
    root: Path = Path("/"),
) -> Machine:
    """allowed: cores that this process could run on before it imported anything that binds it to fewer."""
    groups = control_groups(root)
    memory = meminfo(root)
    total, available = memory.get("MemTotal", _physical_memory()), memory.get("MemAvailable")
    limit, left, by = memory_limit(groups, total)
    flags = cpu_flags(root)
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
        steal=steal,
    )


def cpu_flags(root: Path = Path("/")) -> frozenset[str] | None:
    """The processor's features that the system shows."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return None


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows; names that a system does not have
        return None


def _physical_cores(allowed: frozenset[int], root: Path) -> int | None:
    """Cores among those allowed, told apart by the threads that share each."""
    place = root / "sys/devices/system/cpu"
    siblings = {text_of(place / f"cpu{i}/topology/thread_siblings_list") for i in allowed}
    return None if "" in siblings else len(siblings)


def _system() -> str:
    release = platform.release()
    try:
        pretty = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        pretty = ""
    return f"{platform.system()} {release}{f', {pretty}' if pretty else ''}"
