"""The type in which a drafter is trained: bf16 where the processor multiplies it, and else float32.

A processor without instructions for bf16 makes float32 of it first, number by number: with AVX2, a product in bf16 took
six times as long as one in float32 (LOG, 26 November 2026).
"""

from __future__ import annotations

import torch

_MULTIPLY_IT = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # PyTorch has no public names for these


def fastest(device: torch.device) -> torch.dtype:
    """The type of matrices that is multiplied fastest."""
    if device.type != "cpu" or any(getattr(torch.cpu, name, lambda: False)() for name in _MULTIPLY_IT):
        return torch.bfloat16
    return torch.float32


def mixed(device: torch.device) -> torch.autocast:
    """Within it, matrices are multiplied in the fastest type."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fastest(device) == torch.bfloat16)
