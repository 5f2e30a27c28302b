"""The native module and its instruction sets, PyTorch's threads, and the optional packages."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
import time
from importlib.metadata import requires
from pathlib import Path

import torch
from packaging.requirements import Requirement

from foretoken.common.provenance import version_of
from foretoken.doctor.facts import BINDING, COUNTING, WAITING, Amx, Engine, Gpu, Part, Threads
from foretoken.doctor.machine import allowed_cores, cpu_flags
from foretoken.errors import NativeError
from foretoken.kernels import gpu, native, rowwise

PACKAGES = ("foretoken", "torch", "transformers", "safetensors", "numpy")
PARTS = {  # package: what it is for, and pip's requirement
    "matplotlib": ("pictures: --plot", "matplotlib>=3.8"),
    "llguidance": ("grammars: --regex, --json-schema, --grammar", "llguidance>=1.9,<2"),
}
_COMPILERS = ("c++", "g++", "clang++", "cl")
_FLAGS = {  # what the system calls them
    "dotprod": "asimddp",
    "avxvnni": "avx_vnni",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "amx": "amx_bf16",
}
_UNKNOWN = "the compiler that built Foretoken"  # start of the module's reason where its build lacks an instruction set
_AMX_FLAGS = ("amx_tile", "amx_bf16", "amx_int8")
_ARCH_PRCTL, _REQUEST, _TILES = 158, 0x1023, 18  # on x86-64; ARCH_REQ_XCOMP_PERM; the feature that holds tiles
_LAYER = (1024, 1024)  # a layer of usual size, whose rows PyTorch may compute differently: see `kernels/rowwise.py`
_SPIN_WATCH = 0.1  # seconds


def versions() -> dict[str, str | None]:
    """The versions of Python, Foretoken and the packages that it computes with."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def untested() -> tuple[str, ...]:
    """Installed packages with a version that Foretoken does not ask for: `torch 2.14.0 (<2.14,>=2.8 is asked for)`."""
    if version_of("foretoken") is None:  # Foretoken runs from its sources
        return ()
    asked = [wanted for wanted in map(Requirement, requires("foretoken") or ()) if wanted.marker is None]
    return tuple(
        f"{wanted.name} {here} ({wanted.specifier} is asked for)"
        for wanted in asked
        if (here := version_of(wanted.name)) and not wanted.specifier.contains(here, prereleases=True)
    )


def engine() -> Engine:
    """The native module and the instruction set in use. What is missing is reported in the result, not raised."""
    kind, error, isa, best = "off" if os.environ.get("FORETOKEN_NATIVE") == "off" else "absent", None, None, None
    lacking: dict[str, str] = {}
    try:
        if native.module() is not None:
            kind, best, lacking = "here", native.supported()[-1], native.lacking()
            isa = native.isa()
    except NativeError as reason:
        kind, error = "here" if best else "broken", str(reason)
    flags = cpu_flags() or ()
    compilers = (*os.environ.get("CXX", "").split()[:1], *_COMPILERS)  # CXX may have options after the compiler's name
    return Engine(
        native=kind,
        error=error,
        isa=isa,
        best=best,
        forced=native.forced_isa(),
        lacking=lacking,
        unbuilt=tuple(n for n, why in lacking.items() if why.startswith(_UNKNOWN) and _FLAGS.get(n) in flags),
        compiler=next(filter(None, map(shutil.which, compilers)), None),
        amx=_amx(),
        rows_alike=None if kind == "here" else _rows_alike(),
    )


def _rows_alike() -> bool:
    """Whether PyTorch's products treat a block's rows alike, of a type that the processor multiplies."""
    dtype = torch.bfloat16 if rowwise.multiplies_bf16() else torch.float32
    return rowwise.block_of(torch.zeros(_LAYER, dtype=dtype), None) > 1


def threads(allowed_before: frozenset[int]) -> Threads:
    """The threads of arithmetic. allowed_before: the cores that this process could use before PyTorch was imported."""
    allowed, count = len(allowed_cores()), torch.get_num_threads()
    return Threads(
        torch=count,
        environment={name: os.environ[name] for name in (*COUNTING, *BINDING, *WAITING) if os.environ.get(name)},
        bound_cores=allowed if allowed < len(allowed_before) else None,
        spin_ms=_spin(count),
    )


def parts() -> tuple[Part, ...]:
    """The packages that only some commands need."""
    return tuple(Part(name, version_of(name), gives, wanted) for name, (gives, wanted) in PARTS.items())


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that PyTorch can use."""
    found = []
    for number in range(torch.cuda.device_count()):
        its = torch.cuda.get_device_properties(number)
        found.append(Gpu(its.name, its.total_memory, gpu.why_not(torch.device("cuda", number))))
    return tuple(found)


def _amx(root: Path = Path("/")) -> Amx:
    flags = cpu_flags(root)
    here = None if flags is None else tuple(name for name in _AMX_FLAGS if name in flags)
    if not here or sys.platform != "linux" or platform.machine() != "x86_64":
        return Amx(here, None)
    # Linux saves a process's tiles only if the process asks for that: Documentation/arch/x86/xstate.rst
    granted = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _REQUEST, _TILES) == 0
    return Amx(here, None if granted else os.strerror(ctypes.get_errno()))


def _spin(count: int) -> float | None:
    """Milliseconds that a PyTorch thread keeps its core after its work: the processor time per thread while this thread
    sleeps."""
    if count < 2:
        return None
    numbers = torch.ones(1 << 21)
    for _ in range(3):
        numbers.add_(1.0)
    began = time.process_time()
    time.sleep(_SPIN_WATCH)
    return 1e3 * (time.process_time() - began) / (count - 1)
