"""What is read of the machine: from files that a test has written, and from this one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from foretoken.common import limits
from foretoken.common.limits import memory_left
from foretoken.doctor import machine
from foretoken.doctor.facts import Busy
from foretoken.doctor.machine import allowed_cores, core_times, file_system, look, look_around, steal
from tests.test_limits import V2, write

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CPUINFO = "processor : 0\nmodel name : A processor\nflags : fpu avx2 hypervisor amx_tile\n"
SIBLINGS = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def test_cores_memory_and_what_limits_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.common.limits.address_space", lambda: None)
    memory = SimpleNamespace(total=32_768_000_000, available=20_480_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
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


def test_a_system_without_proc_tells_little_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise FileNotFoundError("/proc")

    for asked in ("process_iter", "cpu_percent", "cpu_times", "virtual_memory", "disk_partitions"):
        monkeypatch.setattr(psutil, asked, fail)
    monkeypatch.setattr("foretoken.common.limits.address_space", lambda: None)
    seen = look(frozenset({0}), look_around(), steal(core_times()), tmp_path)
    assert (seen.virtual, seen.physical_cores, seen.busy_cores, seen.busiest, seen.steal) == (
        None,
        None,
        None,
        (),
        None,
    )
    assert (seen.memory_total, seen.memory_available) == (None, None)
    assert seen.allowed_cores == seen.usable_cores == 1
    assert file_system(tmp_path) is None


def test_who_is_busy_is_told_by_name_without_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    running = [(os.getpid(), "python", 90.0), (7, "a (strange) name", 150.0), (8, "idle", 5.0), (9, None, None)]
    looks: list[list[str]] = []

    def process_iter(attributes: list[str]) -> list[SimpleNamespace]:
        looks.append(attributes)
        return [SimpleNamespace(pid=pid, info={"name": name, "cpu_percent": used}) for pid, name, used in running]

    clock = iter([10.0, 10.125])  # of this process: half a core in a quarter of a second
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(time, "process_time", lambda: next(clock))
    monkeypatch.setattr(psutil, "process_iter", process_iter)
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds: 62.5 if len(looks) == 1 and seconds == 0.25 else 0.0)
    assert look_around() == (pytest.approx(2.0), (Busy("a (strange) name", 7, 1.5),))  # 2.5 in all, 0.5 of this process
    assert looks == [["cpu_percent"], ["name", "cpu_percent"]], "what each used is counted from the first look on"


def test_a_process_that_works_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as works:
        try:
            assert works.stdout is not None
            works.stdout.readline()
            monkeypatch.setattr(machine, "_FEW", 1000)
            used, busiest = look_around()
        finally:
            works.kill()
    assert used is not None
    assert works.pid in {one.pid for one in busiest}


@pytest.mark.parametrize("cores", [1, 4])
def test_what_the_host_took_is_a_share_of_all_time_but_guests(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    times = namedtuple("times", ["user", "idle", "steal", "guest"])
    told = iter([times(100.0, 100.0, 0.0, 50.0), times(103.0, 100.0, 1.0, 53.0)])
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(told))
    # four seconds of one core are four; of four cores they are one, which is too short: since the boot, then
    assert steal(core_times()) == pytest.approx(1 / 4 if cores == 1 else 1 / 204)


def test_a_system_that_knows_no_host_tells_no_steal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: namedtuple("times", ["user", "idle"])(1.0, 2.0))
    assert steal(core_times()) is None


def test_the_kind_of_a_file_system_is_that_of_the_deepest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "mounted here"
    inside.mkdir()
    mounts = {"/": "ext4", str(inside.resolve()): "overlay"}
    listed = [*mounts.items(), (str(inside.resolve()), "tmpfs")]  # a mount over a mount hides it
    monkeypatch.setattr(
        psutil, "disk_partitions", lambda *, all: [SimpleNamespace(mountpoint=at, fstype=kind) for at, kind in listed]
    )
    assert file_system(inside) == "tmpfs"
    assert file_system(tmp_path) == "ext4"


@needs_linux
def test_this_machine_tells_what_it_has() -> None:
    seen = look(allowed_cores(), look_around(), steal(core_times()))
    assert seen.busy_cores is not None
    assert seen.steal is not None
    assert file_system(Path("/proc/self")) == "proc"
    assert seen.memory_total is not None
    assert seen.memory_available is not None
    assert 0 < seen.memory_available <= seen.memory_total
    assert 1 <= seen.usable_cores <= seen.allowed_cores <= seen.cores
    assert seen.processor
    assert limits.control_groups().memory is None or limits.control_groups().memory_left is not None
