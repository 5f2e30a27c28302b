from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.decoder import Decoder
from tests.decoder.outcomes import SHAPES, Make
from tests.tiny import ARITHMETICS, tiny_decoder
from tests.tiny import one_thread as one_thread


@pytest.fixture(params=ARITHMETICS)
def arithmetic(request: pytest.FixtureRequest) -> str:
    """A test that asks for it runs natively and in PyTorch: give it to the decoders that it makes."""
    return str(request.param)


@pytest.fixture
def make(arithmetic: str) -> Make:
    """Makes decoders of one of `SHAPES`; a test that asks for it runs natively and in PyTorch."""

    def decoder(shape: str, dtype: torch.dtype = torch.float32, threads: int = 1, **changes: Any) -> Decoder:
        config = {"num_hidden_layers": 2, **SHAPES[shape], **changes}
        made = tiny_decoder(seed=5, dtype=dtype, threads=threads, arithmetic=arithmetic, **config)
        assert made.arithmetic.startswith("pytorch" if arithmetic == "pytorch" else "native")
        return made

    return decoder


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Fill with NaN whatever lies beyond the slots that are already in use, each time that slots are placed. The test
    that asks for it can take it back."""
    place = Cache.place

    def place_in_poison(cache: Cache, parents: Sequence[int]) -> range:
        used = cache.length - cache.base + cache.scratch
        slots = place(cache, parents)
        cache._memory.keys[:, used:] = torch.nan
        cache._memory.values[:, used:] = torch.nan
        return slots

    monkeypatch.setattr(Cache, "place", place_in_poison)
    return lambda: monkeypatch.setattr(Cache, "place", place)
