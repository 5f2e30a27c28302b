"""What the system, control groups (containers, services) and `ulimit -v` leave of cores and memory: Linux, else nothing
is known.

Limits hold on every level of the tree of groups, so all are read from the process's own group up to the mount.
Source: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60  # bytes: version 1 writes a number like this for "no limit"


@dataclass(frozen=True)
class Limits:
    """The least of what groups allow."""

    cores: float | None = None
    memory: int | None = None
    memory_left: int | None = None  # before the limit is reached: pages of files can be dropped, and count as left


def control_groups(root: Path = Path("/")) -> Limits:
    """The limits of this process's control groups, of either version. root: where /proc and the mounts are."""
    cores: list[float] = []
    memory: list[tuple[int, int]] = []
    for folder in _groups(root, "cpu"):
        quota, period = _cpu(folder)
        if quota > 0 and period > 0:
            cores.append(quota / period)
    for folder in _groups(root, "memory"):
        limit, used = _memory(folder)
        if limit is not None and limit < UNLIMITED:
            memory.append((limit, max(0, limit - used)))
    return Limits(
        min(cores, default=None),
        min((limit for limit, _ in memory), default=None),
        min((left for _, left in memory), default=None),
    )


def memory_left(root: Path = Path("/")) -> int | None:
    """What can be allocated now, in bytes: the least of what the system and all limits leave."""
    _, left, _ = memory_limit(control_groups(root), None)
    return min((n for n in (meminfo(root).get("MemAvailable"), left) if n is not None), default=None)


def memory_limit(groups: Limits, total: int | None) -> tuple[int | None, int | None, str | None]:
    """The least limit below the total, what it leaves, and whose it is."""
    found = []
    if groups.memory is not None and groups.memory_left is not None:
        found.append((groups.memory_left, groups.memory, "a control group"))
    space = address_space()
    if space is not None:
        found.append((space[1], space[0], "ulimit -v"))
    found = [one for one in found if total is None or one[1] < total]
    if not found:
        return None, None, None
    left, limit, by = min(found)
    return limit, left, by


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """What the system says of its memory, in bytes."""
    found = {}
    for line in text_of(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def address_space() -> tuple[int, int] | None:
    """What `ulimit -v` allows, and what it leaves, in bytes; None if it limits nothing."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return limit, limit
    return limit, max(0, limit - pages * resource.getpagesize())


def text_of(path: Path) -> str:
    """A small file of the system's; empty if it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the process's group and of all above it, for one controller."""
    paths = _paths(root)
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        places, kind = left.split(), right.split()
        if len(places) < 5 or len(kind) < 3:
            continue
        path = None
        if kind[0] == "cgroup2":
            path = paths.get("")
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            path = paths.get(controller)
        if path is not None:
            yield from _upwards(root / places[4].lstrip("/"), path, places[3])


def _paths(root: Path) -> dict[str, str]:
    """The group of this process by controller; of version 2 by ""."""
    paths = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _upwards(mount: Path, path: str, mounted: str) -> Iterator[Path]:
    """mounted: which group the mount shows, of a container often its own."""
    below = path if mounted == "/" else path.removeprefix(mounted) if path.startswith(mounted) else "/"
    folder = mount / below.lstrip("/")
    while folder != mount and mount in folder.parents:
        if folder.is_dir():
            yield folder
        folder = folder.parent
    yield mount


def _cpu(folder: Path) -> tuple[int, int]:
    words = text_of(folder / "cpu.max").split()  # version 2: "max 100000", or a number in place of max
    if not words:
        words = [text_of(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
    return quota or 0, period or 0


def _memory(folder: Path) -> tuple[int | None, int]:
    limit, used, dropped = (text_of(folder / name) for name in ("memory.max", "memory.current", "memory.stat"))
    if not limit:
        limit, used = (text_of(folder / f"memory.{name}_in_bytes") for name in ("limit", "usage"))
    stat = dict(line.split()[:2] for line in dropped.splitlines() if len(line.split()) >= 2)
    files = _number(stat.get("total_inactive_file") or stat.get("inactive_file") or "") or 0
    return _number(limit), max(0, (_number(used) or 0) - files)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
