"""Control groups of both versions, as containers show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.common.limits import Limits, control_groups

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "3{n} 31 0:3{n} {root} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_version_2_every_level_of_the_tree_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user.slice/session"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/session\n",
            "proc/self/mountinfo": V2.format(root="/"),
            f"{group}/memory.max": "8000000000\n",
            f"{group}/memory.current": "3000000000\n",
            f"{group}/memory.stat": "anon 1\ninactive_file 2000000000\n",
            f"{group}/cpu.max": "max 100000\n",
            "sys/fs/cgroup/user.slice/memory.max": "6000000000\n",
            "sys/fs/cgroup/user.slice/memory.current": "3500000000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "150000 100000\n",
        },
    )
    assert control_groups(tmp_path) == Limits(cores=1.5, memory=6_000_000_000, memory_left=2_500_000_000)


def test_what_files_fill_can_be_dropped_and_counts_as_left(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2.format(root="/"),
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "900\n",
            "sys/fs/cgroup/memory.stat": "inactive_file 500\n",
        },
    )
    assert control_groups(tmp_path) == Limits(cores=None, memory=1000, memory_left=600)


@pytest.mark.parametrize(("mounted", "path"), [("/", "/docker/abc"), ("/docker/abc", "/docker/abc"), ("/..", "/")])
def test_version_1_with_a_folder_a_controller(tmp_path: Path, mounted: str, path: str) -> None:
    below = "docker/abc/" if mounted == "/" else ""
    write(
        tmp_path,
        {
            "proc/self/cgroup": f"4:memory:{path}\n1:cpu,cpuacct:{path}\n0::/\n",
            "proc/self/mountinfo": V1.format(n=1, name="memory", root=mounted)
            + V1.format(n=2, name="cpu", root=mounted),
            f"sys/fs/cgroup/memory/{below}memory.limit_in_bytes": "2000000000\n",
            f"sys/fs/cgroup/memory/{below}memory.usage_in_bytes": "500000000\n",
            f"sys/fs/cgroup/memory/{below}memory.stat": "inactive_file 1\ntotal_inactive_file 100000000\n",
            f"sys/fs/cgroup/cpu/{below}cpu.cfs_quota_us": "200000\n",
            f"sys/fs/cgroup/cpu/{below}cpu.cfs_period_us": "100000\n",
        },
    )
    assert control_groups(tmp_path) == Limits(cores=2.0, memory=2_000_000_000, memory_left=1_600_000_000)


def test_version_1_writes_no_limit_as_a_large_number(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "proc/self/mountinfo": V1.format(n=1, name="memory", root="/") + V1.format(n=2, name="cpu", root="/"),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert control_groups(tmp_path) == Limits()


@pytest.mark.parametrize("mounts", ["", "nonsense\n", V2.format(root="/")])
def test_a_system_without_them_limits_nothing(tmp_path: Path, mounts: str) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mounts} if mounts else {})
    assert control_groups(tmp_path) == Limits()
