"""A NaN is an error where plain decoding would meet it, and nowhere else."""

from __future__ import annotations

import pytest

from foretoken.drafters.nothing import NothingDrafter
from foretoken.errors import NumericsError
from foretoken.protocol.types import Request, Turn
from tests.engine.common import both
from tests.fakes import Fake
from tests.tiny import tiny_decoder
from tests.world import Run


@both
def test_a_nan_logit_is_an_error_that_names_its_cause(arithmetic: str) -> None:
    target = tiny_decoder(arithmetic=arithmetic)
    target.weights.tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    with pytest.raises(NumericsError, match=r"1 of 1536 numbers in model.layers.1.mlp.up_proj.weight"):
        Run(target, NothingDrafter(), [Request(0, (1, 2, 3), 4)])


@both
def test_a_nan_that_plain_decoding_would_not_meet_is_not_an_error(arithmetic: str) -> None:
    """The embedding of one token is NaN. A draft that proposes it is wrong; it must not break the run."""
    target = tiny_decoder(arithmetic=arithmetic)
    prompt = (1, 2, 3)
    plain = Run(target, NothingDrafter(), [Request(0, prompt, 8)]).sequences[0].tokens
    poison = next(token for token in range(50) if token not in (*prompt, *plain))
    target.weights.embedding[poison] = float("nan")

    class Poisoned(Fake):
        name = "poisoned"

        def guess(self, turn: Turn) -> list[int]:
            return [poison] * turn.depth

    run = Run(target, Poisoned(), [Request(0, prompt, 8)])
    assert run.sequences[0].tokens == plain
    assert sum(record.drafted.get(0, 0) for record in run.records) > 0
