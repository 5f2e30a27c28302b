"""What the contracts give a drafter to be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foretoken.decoder.caches import Caches
from tests.world import World


@dataclass(frozen=True)
class Stage:
    """What a drafter may need to be made: the world, the target's caches, the truth, and chain or tree."""

    world: World
    caches: Caches
    shape: str

    @property
    def truth(self) -> Mapping[int, tuple[int, ...]]:
        """By sequence: the prompt and its plain continuation."""
        return {s: plain.prompt + plain.tokens for s, plain in enumerate(self.world.plains)}
