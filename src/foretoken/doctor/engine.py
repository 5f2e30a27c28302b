"""The native module and its instruction sets, PyTorch's threads, and the parts that are optional."""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from foretoken.doctor.facts import Amx, Engine, Gpu, Part, Threads
from foretoken.doctor.machine import allowed_cores, cpu_flags
from foretoken.errors import NativeError
from foretoken.kernels import native

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
PARTS = {  # name: what it gives, and what pip is asked for
    "matplotlib": ("pictures: --plot", "matplotlib>=3.8"),
    "llguidance": ("grammars: --regex, --json-schema", "llguidance>=1.9,<2"),
}
VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)
_COMPILERS = ("c++", "g++", "clang++", "cl")
_FLAGS = {"avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16", "amx": "amx_bf16"}
_UNKNOWN = "the compiler that built Foretoken"  # how the module begins where the build lacks an instruction set
_AMX_FLAGS = ("amx_tile", "amx_bf16", "amx_int8")
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18  # on x86-64; ARCH_REQ_XCOMP_PERM; the feature that holds tiles
_SPIN_WATCH = 0.1  # seconds


def expect_torch() -> None:
    """Raise a NativeError where PyTorch does not load: nothing runs there, and little can be found out."""
    try:
        importlib.import_module("torch")
    except (ImportError, OSError) as error:
        raise NativeError(
            f"PyTorch does not load ({error}); lift `ulimit -v` if memory is limited, else install PyTorch again"
        ) from None


def versions() -> dict[str, str | None]:
    """Foretoken's, Python's, and those of what it computes with."""
    return {"python": platform.python_version(), **{name: _version(name) for name in ("foretoken", *PACKAGES)}}


def untested() -> tuple[str, ...]:
    """Installed packages that are not of a version that Foretoken asks for: `torch 2.14.0 (torch<2.14,>=2.8)`."""
    from packaging.requirements import InvalidRequirement, Requirement

    wrong = []
    for text in _requirements():
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        here = _version(wanted.name)
        if wanted.marker is None and here and not wanted.specifier.contains(here, prereleases=True):
            wrong.append(f"{wanted.name} {here} ({wanted.specifier} is asked for)")
    return tuple(wrong)


def engine() -> Engine:
    """The native module, if it is there, and its instruction set in use. What cannot be had is said, not raised."""
    kind, error, isa, best = "here", None, None, None
    lacking: dict[str, str] = {}
    try:
        module = native.module()
    except NativeError as reason:
        module, kind, error = None, "broken", str(reason)
    if module is None and kind == "here":
        kind = "off" if os.environ.get("FORETOKEN_NATIVE") == "off" else "absent"
    if module is not None:
        best = native.supported()[-1]
        lacking = native.lacking()
        try:
            isa = native.isa()
        except NativeError as reason:
            error = str(reason)
    return Engine(
        native=kind,
        error=error,
        isa=isa,
        best=best,
        forced=native.forced_isa(),
        lacking=lacking,
        unbuilt=tuple(
            name
            for name, why in lacking.items()
            if why.startswith(_UNKNOWN) and _FLAGS.get(name) in (cpu_flags() or ())
        ),
        compiler=next((found for name in (os.environ.get("CXX"), *_COMPILERS) if (found := _which(name))), None),
        amx=_amx(),
        rows_alike=None if kind == "here" else _rows_alike(),
    )


def threads(allowed_before: frozenset[int]) -> Threads:
    """allowed_before: the cores that this process might run on before anything imported PyTorch."""
    import torch

    allowed = allowed_cores()
    return Threads(
        torch=torch.get_num_threads(),
        environment={name: os.environ[name] for name in VARIABLES if os.environ.get(name)},
        bound_cores=len(allowed) if len(allowed) < len(allowed_before) else None,
        spin_ms=_spin(torch.get_num_threads()),
    )


def parts() -> tuple[Part, ...]:
    """The packages that only some commands need."""
    return tuple(Part(name, _version(name), gives, wanted) for name, (gives, wanted) in PARTS.items())


def gpus() -> tuple[Gpu, ...]:
    """Those that PyTorch can use."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        found.append(Gpu(about.name, about.total_memory))
    return tuple(found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    try:
        return requires("foretoken") or []
    except PackageNotFoundError:  # it runs from its sources
        return []


def _which(name: str | None) -> str | None:
    return shutil.which(name.split()[0]) if name and name.split() else None


def _amx(root: Path = Path("/")) -> Amx:
    flags = cpu_flags(root)
    here = None if flags is None else tuple(name for name in _AMX_FLAGS if name in flags)
    if not here or sys.platform != "linux" or platform.machine() != "x86_64":
        return Amx(here, None)
    # the system enlarges what it saves of a process only for who asks: Linux, Documentation/arch/x86/xstate.rst
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0:
        return Amx(here, None)
    return Amx(here, os.strerror(ctypes.get_errno()))


def _rows_alike() -> bool:
    """Whether PyTorch's products of a layer of usual size treat a block's rows alike: see `kernels/rowwise.py`."""
    import torch

    from foretoken.kernels import rowwise

    return rowwise.block_of(torch.zeros((1024, 1024), dtype=torch.bfloat16), None) > 1


def _spin(count: int) -> float | None:
    """How long a thread of PyTorch's keeps its core when its work is done, in milliseconds: what all of them use of the
    processor while this one sleeps."""
    import torch

    if count < 2:
        return None
    numbers = torch.ones(1 << 21)
    for _ in range(3):
        numbers.add_(1.0)
    began = time.process_time()
    time.sleep(_SPIN_WATCH)
    return 1e3 * (time.process_time() - began) / (count - 1)
