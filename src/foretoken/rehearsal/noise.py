"""Random numbers for weights of a rehearsal that do not change its output, and zeros for silent weights."""

from __future__ import annotations

import hashlib

import torch

_COUNT = 1_000_003  # numbers in a block, which is repeated; a prime, so that no two rows of a weight begin alike


class Noise:
    """Numbers that depend on the seed, the tensor's name and the place in it, but not on the pieces asked for."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._seed = seed
        # of either sign, 0.5 to 1.5 in size: no number is so small that a processor takes longer for it
        sizes = torch.rand(_COUNT, generator=generator) + 0.5
        self._block = sizes * (torch.randint(2, (_COUNT,), generator=generator) * 2 - 1)

    def rows(self, name: str, first: int, count: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        """Random numbers [count, columns] for the rows of a tensor from `first` on. like: gives type and spread."""
        block = (self._block * like[:256].float().std()).to(like.dtype)
        return self._repeated(block, name, first, count, columns)

    def zeros(self, name: str, first: int, count: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeros of either sign instead: an engine that keeps equal matrices once then finds no two equal ones."""
        return self._repeated((self._block * 0).to(dtype), name, first, count, columns)

    def _repeated(self, block: torch.Tensor, name: str, first: int, count: int, columns: int) -> torch.Tensor:
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        begin = (int.from_bytes(digest[:8], "big") + first * columns) % _COUNT
        block = torch.cat((block[begin:], block[:begin]))
        size = count * columns
        return block.repeat(-(-size // _COUNT))[:size].view(count, columns)
