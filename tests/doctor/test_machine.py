"""What is read of the machine: from files that a test has written, and from this one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from foretoken.common import limits
from foretoken.common.limits import memory_left
from foretoken.doctor.facts import Busy
from foretoken.doctor.machine import Watch, allowed_cores, look
from tests.test_limits import V2, write

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CPUINFO = "processor : 0\nmodel name : A processor\nflags : fpu avx2 hypervisor amx_tile\n"
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def stat(*numbers: int) -> str:
    return f"cpu  {' '.join(map(str, numbers))} 0 0\ncpu0 1 2 3\n"


def process(pid: int, name: str, user: int, system: int) -> str:
    return f"{pid} ({name}) S 1 1 1 0 -1 4194560 100 0 0 0 {user} {system} 0 0 20 0 1 0 100\n"


def test_cores_memory_and_what_limits_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.common.limits.address_space", lambda: None)
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal:  32000000 kB\nMemAvailable:  20000000 kB\nHugePages_Total: 0\n",
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2.format(root="/"),
        **{SIBLINGS.format(i): f"{i % 2},{i % 2 + 2}\n" for i in range(4)},
    }
    write(tmp_path, files)
    seen = look(frozenset(range(4)), (0.5, ()), 0.25, tmp_path)
    assert (seen.allowed_cores, seen.physical_cores, seen.core_quota, seen.usable_cores) == (4, 2, None, 4)
    assert (seen.memory_total, seen.memory_available) == (32_768_000_000, 20_480_000_000)
    assert (seen.memory_limit, seen.memory_limited_by) == (None, None)
    assert (seen.virtual, seen.busy_cores, seen.steal) == (True, 0.5, 0.25)
    assert memory_left(tmp_path) == 20_480_000_000

    group = {"memory.max": "4000000000", "memory.current": "1000000000", "cpu.max": "250000 100000"}
    write(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()})
    seen = look(frozenset(range(4)), (None, ()), None, tmp_path)
    assert (seen.core_quota, seen.usable_cores) == (2.5, 2)
    assert (seen.memory_available, seen.memory_limit) == (3_000_000_000, 4_000_000_000)
    assert seen.memory_limited_by == "a control group"
    assert memory_left(tmp_path) == 3_000_000_000

    monkeypatch.setattr("foretoken.common.limits.address_space", lambda: (5_000_000_000, 2_000_000_000))
    seen = look(frozenset(range(2)), (None, ()), None, tmp_path)
    assert (seen.memory_available, seen.memory_limit, seen.memory_limited_by) == (
        2_000_000_000,
        5_000_000_000,
        "ulimit -v",
    )
    assert seen.core_quota is None, "more than the two cores that are allowed is no limit"


def test_a_system_without_proc_tells_little_and_nothing_fails(tmp_path: Path) -> None:
    seen = look(frozenset({0}), Watch(tmp_path).busy(), Watch(tmp_path).steal(), tmp_path)
    assert (seen.virtual, seen.physical_cores, seen.busy_cores, seen.busiest, seen.steal) == (
        None,
        None,
        None,
        (),
        None,
    )
    assert seen.allowed_cores == seen.usable_cores == 1


def test_who_is_busy_is_told_by_name_without_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own, tick = os.getpid(), os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
    clock = iter([100.0, 102.0, 102.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    write(
        tmp_path,
        {
            "proc/stat": stat(100, 0, 100, 1000, 0, 0, 0, 50),
            f"proc/{own}/stat": process(own, "python", 10, 0),
            "proc/7/stat": process(7, "a (strange) name", 5, 5),
            "proc/8/stat": process(8, "idle", 5, 5),
        },
    )
    watch = Watch(tmp_path)
    write(
        tmp_path,
        {  # of 8 seconds of four cores 5 were used, 1 of them was stolen
            "proc/stat": stat(100 + 4 * tick, 0, 100, 1000 + 3 * tick, 0, 0, 0, 50 + tick),
            f"proc/{own}/stat": process(own, "python", 10 + tick, 0),
            "proc/7/stat": process(7, "a (strange) name", 5 + 2 * tick, 5 + tick),
        },
    )
    (tmp_path / "proc/8/stat").unlink()  # it ended
    busy, busiest = watch.busy()
    assert busy == pytest.approx(2.0)  # 2.5 in all, 0.5 of this process
    assert busiest == (Busy("a (strange) name", 7, pytest.approx(1.5)),)
    assert watch.steal() == pytest.approx(1 / 8)


@needs_linux
def test_this_machine_tells_what_it_has() -> None:
    watch = Watch()
    seen = look(allowed_cores(), watch.busy(), watch.steal())
    assert seen.memory_total is not None
    assert seen.memory_available is not None
    assert 0 < seen.memory_available <= seen.memory_total
    assert 1 <= seen.usable_cores <= seen.allowed_cores <= seen.cores
    assert seen.processor
    assert limits.control_groups().memory is None or limits.control_groups().memory_left is not None
