"""What a drafter is shown of the rows just committed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foretoken.decoder.caches import Caches
from foretoken.types import Features, Needs, Request, Verdict
from foretoken.verification.local import LocalVerifier
from tests.engine.common import request
from tests.fakes import KeysValues, Scripted
from tests.world import Run, make_world


class Watches(Scripted):
    """Asks for hidden states and keeps what it is shown."""

    needs = Needs(hidden=True)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        super().observe(verdicts)
        self.seen: list[Features] = getattr(self, "seen", [])
        self.seen += [v.features for v in verdicts if v.features is not None]


def test_features_are_owned_and_cover_each_committed_row_once() -> None:
    world = make_world()
    plain = world.plains[0]
    drafter = Watches({0: plain.prompt + plain.tokens})
    run = Run(world.target, drafter, [Request(0, plain.prompt, 12)])
    at = 0
    for features, verdict in zip(drafter.seen, run.verdicts[0], strict=True):
        assert features.start == at
        rows = len(features.tensors["hidden"])
        assert at + rows == verdict.position + len(verdict.tokens) - 1, "the last token has no row yet"
        at += rows
    assert at == len(plain.prompt) + 11


def test_features_own_their_memory() -> None:
    world, caches = make_world(), Caches()
    target = world.target
    drafter = KeysValues(target)
    verifier = LocalVerifier(target, caches, needs=Needs(hidden=True, extractor=drafter.extract))
    (verdict,) = verifier.begin([request()])
    assert verdict.features is not None
    before = {name: tensor.clone() for name, tensor in verdict.features.tensors.items()}
    caches[0]._memory.keys.fill_(7)
    caches[0]._memory.values.fill_(7)
    assert before.keys() == {"keys", "values", "hidden"}
    for name, tensor in verdict.features.tensors.items():
        assert torch.equal(tensor, before[name]), name
