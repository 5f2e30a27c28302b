"""A round that breaks off, wherever: the next draft is judged rightly or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken.decoder import memory
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.rows import Rows
from foretoken.errors import ContractError
from foretoken.protocol.types import Needs, Turn
from foretoken.verification.local import LocalVerifier
from tests.engine.common import both, request
from tests.tiny import needs_native, tiny_decoder
from tests.world import make_world, read


@pytest.mark.parametrize(
    ("arithmetic", "method", "after"),
    [
        *(pytest.param("pytorch", "write", layer, id=f"pytorch-write-{layer}") for layer in range(3)),
        # a native pass is one call: it can be broken off before, and after everything is written
        pytest.param("auto", "addresses", 0, id="native-before", marks=needs_native),
        pytest.param("auto", "tag", 0, id="native-after", marks=needs_native),
    ],
)
def test_a_cancelled_pass_leaves_a_sound_cache(
    arithmetic: str, method: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks a pass off, and wherever: the prefix is as it was, and the sequence can go on."""
    world, caches = make_world(arithmetic), Caches()
    assert world.target.config.num_layers == 3
    verifier = LocalVerifier(world.target, caches)
    plain = world.plains[0]
    read(verifier, [request()])
    turn = Turn(0, 1, len(plain.prompt) + 1, 5, 5)
    before = caches[0].digest()
    real = getattr(Cache, method)
    calls = iter(range(after))

    def interrupted(*args: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.submit([turn.chain(plain.tokens[1:4], "test")])
    assert caches[0].digest() == before
    assert caches[0].scratch == 0
    (verdict,) = verifier.result(verifier.submit([turn.chain(plain.tokens[1:4], "test")]))
    assert verdict.tokens == plain.tokens[1:5]


class BrokenOffError(Exception):
    """Something that breaks a pass off."""


class Breaks:
    """An extractor with nothing to say, and a bug now and then."""

    name = "breaks"
    armed = False

    def __call__(self, cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        if self.armed:
            raise BrokenOffError
        return {}


@both
@pytest.mark.parametrize("where", ["extractor", "commit", "place", "second commit"])
def test_wherever_a_round_breaks_off_the_next_draft_is_judged_rightly_or_refused(
    where: str, arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, caches = make_world(arithmetic), Caches()
    extractor = Breaks()
    verifier = LocalVerifier(world.target, caches, extractors=[extractor])
    read(verifier, [replace(request(s), needs=Needs(extractors=(extractor.name,))) for s in (0, 1)])
    turns = [Turn(s, 1, len(world.plains[s].prompt) + 1, 5, 5) for s in (0, 1)]
    # a right token behind a wrong one: the accepted path has to be moved
    drafts = [t.tree([3, *world.plains[t.sequence].tokens[1:4]], [-1, -1, 1, 2], "test") for t in turns]
    calls = iter(range(1 if where == "second commit" else 0))
    name = where.removeprefix("second ")
    real = getattr(Cache, name, None)

    def call(*args: Any) -> Any:
        if next(calls, None) is None:
            raise BrokenOffError
        assert real is not None
        return real(*args)

    extractor.armed = where == "extractor"
    with monkeypatch.context() as patch:
        if real is not None:
            patch.setattr(Cache, name, call)
        with pytest.raises(BrokenOffError):
            verifier.submit(drafts)
    extractor.armed = False
    judged = refused = 0
    for draft, truth in zip(drafts, (p.tokens for p in world.plains), strict=True):
        for done in (1, 5):  # tokens so far: as if nothing, or all, had been committed
            position = len(world.plains[draft.sequence].prompt) + done
            turn = Turn(draft.sequence, 1 if done == 1 else 2, position, 5, 5)
            try:
                verdicts = verifier.result(verifier.submit([turn.chain(truth[done : done + 2], "test")]))
            except ContractError:
                refused += 1
                continue
            if not verdicts:  # passed over: it is not the place to which the sequence has come
                refused += 1
                continue
            assert [verdict.tokens for verdict in verdicts] == [truth[done : done + 3]], "judged, so judged rightly"
            judged += 1
    assert judged >= 1
    assert refused >= 1


@both
def test_a_commit_that_broke_off_half_way_is_not_tried_again(arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys have been moved, its values have not."""
    target = tiny_decoder(arithmetic=arithmetic)
    cache = target.new_cache()
    rows = Rows([(cache, [5, 6, 7], [-1, -1, 1])])
    target.forward(rows)
    move, moved = memory._move, []

    def breaks(tensor: torch.Tensor, path: Sequence[int], start: int) -> None:
        if moved:
            raise BrokenOffError
        moved.append(tensor)
        move(tensor, path, start)

    with monkeypatch.context() as patch:
        patch.setattr(memory, "_move", breaks)
        with pytest.raises(BrokenOffError):
            cache.commit([1, 2], rows.writer)
    assert len(moved) == 1
    assert cache.length == 0
    with pytest.raises(ContractError, match="was not written by the pass that commits it"):
        cache.commit([1, 2], rows.writer)
