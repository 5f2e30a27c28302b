"""What is found of the engine, natively and without."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

import pytest
import torch

from foretoken.doctor import engine, gather
from foretoken.doctor.machine import allowed_cores
from foretoken.errors import NativeError
from foretoken.kernels import native
from tests.tiny import needs_native


@pytest.fixture
def fresh() -> Iterator[None]:
    """What is remembered of the environment is asked anew, in the test and after it."""
    native.module.cache_clear()
    native.isa.cache_clear()
    yield
    native.module.cache_clear()
    native.isa.cache_clear()


@needs_native
@pytest.mark.usefixtures("fresh")
def test_every_level_is_in_use_forced_or_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORETOKEN_ISA", raising=False)
    found = engine.engine()
    assert (found.native, found.error, found.forced, found.rows_alike) == ("here", None, None, None)
    assert found.isa == found.best == native.supported()[-1]
    assert sorted([*native.supported(), *found.lacking]) == sorted(native.ISAS)
    assert all(found.lacking.values())
    native.isa.cache_clear()
    monkeypatch.setenv("FORETOKEN_ISA", "generic")
    forced = engine.engine()
    assert (forced.isa, forced.forced, forced.best) == ("generic", "generic", found.best)
    native.isa.cache_clear()
    monkeypatch.setenv("FORETOKEN_ISA", "avx3")
    wrong = engine.engine()
    assert (wrong.isa, wrong.native, wrong.best) == (None, "here", found.best)
    assert str(wrong.error).startswith("FORETOKEN_ISA is 'avx3'")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("value", "kind"), [("off", "off"), ("nonsense", "broken")])
def test_a_module_that_is_off_or_asked_for_wrongly(value: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", value)
    found = engine.engine()
    assert (found.native, found.isa, found.best, found.lacking) == (kind, None, None, {})
    assert found.rows_alike is not None
    assert (found.error is None) == (kind == "off")


@pytest.mark.usefixtures("fresh")
def test_a_module_that_was_not_built_is_told_with_the_compiler_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETOKEN_NATIVE", "auto")
    monkeypatch.setitem(sys.modules, "foretoken._native", None)  # an import of it fails as if it were not there
    monkeypatch.setenv("CXX", f"{sys.executable} --some-option")
    found = engine.engine()
    assert (found.native, found.isa, found.compiler) == ("absent", None, sys.executable)


def test_the_system_may_refuse_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def __init__(self, *args: object, **more: object) -> None:
            pass

        def syscall(self, *numbers: int) -> int:
            ctypes.set_errno(1)
            return -1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(ctypes, "CDLL", Libc)
    monkeypatch.setattr(engine, "cpu_flags", lambda root: frozenset({"avx2", "amx_tile", "amx_bf16"}))
    assert engine._amx() == engine.Amx(("amx_tile", "amx_bf16"), os.strerror(1))
    monkeypatch.setattr(engine, "cpu_flags", lambda root: frozenset({"avx2"}))
    assert engine._amx() == engine.Amx((), None), "what the processor lacks is not asked for"
    monkeypatch.setattr(engine, "cpu_flags", lambda root: None)
    assert engine._amx() == engine.Amx(None, None)


def test_threads_are_those_of_pytorch_and_what_binds_them_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    here = allowed_cores()
    found = engine.threads(here)
    assert found.torch == torch.get_num_threads()
    assert found.environment["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_NUM_THREADS" not in found.environment
    assert found.bound_cores is None
    assert found.spin_ms is None or 0 <= found.spin_ms < 1000
    assert engine.threads(here | {max(here) + 1}).bound_cores == len(here)


@pytest.mark.parametrize("error", [ImportError("failed to map segment"), OSError("cannot open shared object file")])
def test_pytorch_that_does_not_load_is_said_in_a_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise error

    gather.expect_torch()
    monkeypatch.setattr(gather.importlib, "import_module", fail)
    with pytest.raises(NativeError, match=rf"PyTorch does not load \({error}\); lift `ulimit -v`"):
        gather.expect_torch()


def test_packages_of_other_versions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        engine, "requires", lambda name: ["torch<2", "numpy>=1", "absent-package>=3", 'matplotlib>99; extra == "plot"']
    )
    assert engine.untested() == (f"torch {torch.__version__} (<2 is asked for)",)
    assert engine.versions()["torch"] == torch.__version__


def test_optional_parts_are_told_whether_they_are_there_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PARTS", {"numpy": ("numbers", "numpy"), "no-such-package": ("nothing", "no-such")})
    there, absent = engine.parts()
    assert there.version
    assert (absent.version, absent.install) == (None, "no-such")
