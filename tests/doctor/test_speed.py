"""Reading memory and disk: that what is said was read was read, and that nothing is left behind."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretoken.doctor import speed
from foretoken.doctor.facts import Disk, MemorySpeed
from foretoken.errors import ModelError
from foretoken.kernels import native
from tests.tiny import needs_native


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the clock 1/1024 s pass, however slow this disk is just now."""
    ticks = count()
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 1024))


@pytest.mark.usefixtures("steady")
def test_a_model_that_lies_there_is_read_the_largest_file_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "_WORTH", 1 << 20)
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "model-1.safetensors").write_bytes(os.urandom(3 << 20))
    (snapshot / "model-2.safetensors").write_bytes(os.urandom(2 << 20))
    (tmp_path / "small.safetensors").write_bytes(b"1")
    found = speed.disk_speed(speed.place_of_models(tmp_path))
    assert (found.read, found.not_measured, found.folder) == ("model-1.safetensors", None, str(tmp_path))
    assert found.cached == 1 << 30  # 3 MiB in three ticks
    if hasattr(os, "O_DIRECT"):
        assert found.size == 3 << 20
        assert found.direct is not None
        assert found.direct > 1e6


@pytest.mark.usefixtures("steady")
def test_a_temporary_file_is_read_whole_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_TEMPORARY", 16 << 20)
    (tmp_path / "model.safetensors").write_bytes(b"too small to say something")
    place = tmp_path / "not" / "made"
    found = speed.disk_speed(Disk(str(place), writable=True, free=None, in_memory=False))
    assert found.read == "a temporary file"
    if hasattr(os, "O_DIRECT"):
        assert found.size == 16 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_reading_takes_the_time_that_passes(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(1 << 20))
    began = time.perf_counter()
    rate, size = speed._sequential(file, 1 << 20)
    assert rate is not None
    assert size / rate <= time.perf_counter() - began


@pytest.mark.usefixtures("steady")
@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system has no direct reads")
def test_a_file_system_that_refuses_direct_reads_is_read_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(os.urandom(1 << 20))
    real, asked = os.open, []

    def refuse(path: str | Path, flags: int, *rest: int) -> int:
        asked.append(flags)
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    rate, size = speed._direct(file)
    assert rate is not None
    assert size == 1 << 20
    assert any(flags & os.O_DIRECT for flags in asked)
    assert not asked[-1] & os.O_DIRECT


@pytest.mark.parametrize(
    ("writable", "free", "why"),
    [
        (False, None, "no model lies there, and nothing can be written"),
        (True, 1 << 20, "no model lies there, and too little is free for a file to be read"),
    ],
)
def test_a_disk_that_cannot_be_measured_says_why(tmp_path: Path, writable: bool, free: int | None, why: str) -> None:
    found = speed.disk_speed(Disk(str(tmp_path), writable, free, in_memory=False))
    assert (found.not_measured, found.direct, found.cached) == (why, None, None)


def test_a_disk_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(speed, "_temporary", fail)
    found = speed.disk_speed(Disk(str(tmp_path), True, None, in_memory=False))
    assert found.not_measured == "a file there could not be read (No space left on device)"


@needs_native
def test_memory_is_read_in_both_kinds_of_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_MOST", 64 << 20)
    found, why = speed.memory_speed(1, native.isa())
    assert (why, found is not None) == (None, True)
    assert found is not None
    assert (found.size, found.by, set(found.streams)) == (64 << 20, "native", {"huge", "small"})
    assert set(found.streams.values()) <= {1, 2, 4, 8, 16}
    assert found.best == max(found.huge or 0, found.small or 0) > 1e8


def test_of_two_moments_the_better_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (MemorySpeed(value, value / 2, {}, 1, 1 << 30, "native") for value in (17e9, 32e9))
    for first, second in ((slow, fast), (fast, slow)):
        monkeypatch.setattr(speed, "memory_speed", lambda *_, found=second: (found, None))
        assert speed.better_of(first, 1, None) == replace(fast, other=17e9)
    monkeypatch.setattr(speed, "memory_speed", lambda *_: (None, "it is full"))
    assert speed.better_of(slow, 1, None) == slow


@pytest.mark.usefixtures("steady")
def test_memory_is_read_without_the_native_module_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_MOST", 64 << 20)
    found, why = speed.memory_speed(1, None)
    assert why is None
    assert found is not None
    assert (found.size, found.by, found.streams) == (64 << 20, "PyTorch", {})
    assert found.huge == found.small == found.best == 64 << 30  # once in a tick


def test_on_a_small_machine_less_memory_is_taken_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "memory_left", lambda: 600 << 20)
    found, _ = speed.memory_speed(1, None)
    assert found is not None
    assert found.size == 64 << 20
    monkeypatch.setattr(speed, "memory_left", lambda: 200_000_000)
    assert speed.memory_speed(1, None) == (None, "only 200 MB of memory are available")


def test_memory_that_is_not_given_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise ModelError("the machine does not give 1 GB of memory; free some")

    monkeypatch.setattr(speed, "allocate", refuse)
    assert speed.memory_speed(1, None) == (None, "the machine does not give 1 GB of memory")
    assert speed._share_in_huge_pages() is None


def test_huge_pages_are_what_the_system_says_and_gives(tmp_path: Path) -> None:
    setting, status = tmp_path / speed._SETTING, tmp_path / "proc/self/status"
    assert speed.huge_pages(tmp_path).setting is None
    assert speed.huge_pages(tmp_path).share is None
    for path, text in ((setting, "always [madvise] never\n"), (status, "Name:\tx\nTHP_enabled:\t0\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="ascii")
    found = speed.huge_pages(tmp_path)
    assert (found.setting, found.disabled) == ("madvise", True)
    if Path("/proc/self/smaps").exists():
        assert found.share is not None
        assert 0 <= found.share <= 1
