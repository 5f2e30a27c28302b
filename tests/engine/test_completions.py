"""Several completions of one prompt share its reading and their passes, and are what each would be alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.drafters.lookup import LookupDrafter
from foretoken.protocol.types import Request, SamplingParams
from tests.world import Run, make_world

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=3)


def of(completion: int, sequence: int, prompt: tuple[int, ...], prompt_of: int | None = None) -> Request:
    return Request(sequence, prompt, 20, keep_logits=True, sampling=SAMPLED, completion=completion, prompt_of=prompt_of)


def test_each_completion_is_what_it_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    target, (one, other) = make_world().target, [plain.prompt for plain in make_world().plains]
    alone = [Run(target, LookupDrafter(), [of(i, 0, one)], caches=Caches()) for i in range(3)]
    foreign = Run(target, LookupDrafter(), [of(0, 0, other)], caches=Caches())

    passes: list[int] = []
    check = Decoder.check

    def counting(decoder: Decoder, rows: Rows, *more: Any) -> Outputs:
        passes.append(len(rows))
        return check(decoder, rows, *more)

    monkeypatch.setattr(Decoder, "check", counting)
    requests = [of(0, 0, one), of(1, 1, one, prompt_of=0), of(0, 2, other), of(2, 3, one, prompt_of=0)]
    together = Run(target, LookupDrafter(), requests)
    assert passes[0] == len(one) + len(other), "a prompt is read once"
    drafted = together.records[1].drafted
    assert drafted.keys() == {0, 2}
    assert passes[1] == 2 + sum(1 + count for count in drafted.values())
    read = [record.read for record in together.records]
    assert read == [{0: len(one), 2: len(other)}, {1: 1, 3: 1}] + [{}] * (len(read) - 2)

    for sequence, run in ((0, alone[0]), (1, alone[1]), (2, foreign), (3, alone[2])):
        mine, its = together.sequences[sequence], run.sequences[0]
        assert mine.tokens == its.tokens
        assert torch.equal(mine.logits, its.logits)
        length = len(one) + 10
        assert together.final_caches[sequence].digest_at(length) == run.final_caches[0].digest_at(length)
    assert len({together.sequences[s].tokens for s in (0, 1, 3)}) == 3, "each has seeded noise of its own"
    assert together.verdicts[1][0].cached_tokens == len(one) - 1
