"""The type in which a drafter is trained: bf16 where the processor multiplies it, and else float32.

A processor without instructions for bf16 makes float32 of it first, number by number: with AVX2, a product in bf16 took
six times as long as one in float32 (LOG, 26 November 2026).
"""

from __future__ import annotations

import torch

from foretoken.kernels.rowwise import multiplies_bf16


def fastest(device: torch.device) -> torch.dtype:
    """The type of matrices that is multiplied fastest."""
    return torch.bfloat16 if device.type != "cpu" or multiplies_bf16() else torch.float32


def mixed(device: torch.device) -> torch.autocast:
    """Within it, matrices are multiplied in the fastest type."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=fastest(device) == torch.bfloat16)
