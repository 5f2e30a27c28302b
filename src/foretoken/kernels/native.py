"""The native module: whether it is there, which instruction levels it may use, and thin checked calls into it."""

from __future__ import annotations

import importlib
import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

from foretoken.errors import ContractError, NativeError, nearest

if TYPE_CHECKING:
    import torch

LEVELS = ("generic", "avx2", "avx512")  # from slow to fast


@cache
def module() -> ModuleType | None:
    """The native module, or None where it was not built or is switched off."""
    wanted = os.environ.get("FORETOKEN_NATIVE", "auto")
    if wanted not in ("auto", "required", "off"):
        raise NativeError(f"FORETOKEN_NATIVE is {wanted!r}; expected auto, required or off")
    if wanted == "off":
        return None
    try:
        return importlib.import_module("foretoken._native")
    except ImportError as error:
        if not (isinstance(error, ModuleNotFoundError) and error.name == "foretoken._native"):
            # it is there: to go on without it would hide what is wrong
            raise NativeError(
                f"the native module does not load ({error}); install Foretoken again, or set FORETOKEN_NATIVE=off"
            ) from error
        if wanted == "required":
            raise NativeError(
                "FORETOKEN_NATIVE=required, but the native module is not built; install a C++ compiler, then "
                "install Foretoken again"
            ) from None
        return None


@cache
def level() -> str:
    """The instruction level in use: the highest that this machine has, or the one that FORETOKEN_LEVEL forces."""
    native = module()
    if native is None:
        raise NativeError("there is no native module, so no instruction level is in use")
    supported = [name for name in LEVELS if native.supports(name)]
    forced = os.environ.get("FORETOKEN_LEVEL")
    if forced is None:
        return supported[-1]
    if forced not in LEVELS:
        raise NativeError(f"FORETOKEN_LEVEL is {forced!r}{nearest(forced, LEVELS)}")
    if forced not in supported:
        raise NativeError(f"FORETOKEN_LEVEL is {forced}, which this machine lacks; it has {', '.join(supported)}")
    return forced


def explain() -> str:
    """Whether the native module runs and at which level, and if not, why not."""
    native = module()
    if native is not None:
        forced = ", forced by FORETOKEN_LEVEL" if "FORETOKEN_LEVEL" in os.environ else ""
        return f"{level()}{forced} (this machine has {', '.join(n for n in LEVELS if native.supports(n))})"
    if os.environ.get("FORETOKEN_NATIVE") == "off":
        return "off, by FORETOKEN_NATIVE"
    return "not built: installed without a C++ compiler, or with FORETOKEN_NATIVE=off; everything works, in PyTorch"


def argmax(logits: torch.Tensor, at_level: str) -> int | None:
    """See `foretoken.kernels.argmax`. logits: float32 [V], contiguous, on the CPU."""
    import torch

    if logits.dtype != torch.float32 or logits.ndim != 1 or len(logits) == 0 or logits.device.type != "cpu":
        raise ContractError(
            f"argmax got {logits.dtype} {list(logits.shape)} on {logits.device}; expected float32 [V] on the CPU, V > 0"
        )
    logits = logits.contiguous()
    native = module()
    assert native is not None
    index = int(native.argmax(logits.data_ptr(), len(logits), LEVELS.index(at_level)))
    return None if index < 0 else index
