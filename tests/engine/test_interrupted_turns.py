"""Ctrl-C at whichever line of a turn: the conversation's next turn is right, and no cache is half-grown."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from foretoken.decoder.cache import Cache
from foretoken.drafters.lookup import LookupDrafter
from foretoken.errors import ContractError
from foretoken.loop.engine import Engine
from foretoken.protocol.types import Request
from foretoken.verification.local import LocalVerifier
from tests.engine.common import both
from tests.interrupts import Interrupts
from tests.world import World, chain_of, decode, make_world

FILES = (
    "decoder/cache.py",
    "decoder/caches.py",
    "decoder/memory.py",
    "verification/local.py",
    "loop/engine.py",
    "decoder/rows.py",
    "decoder/checking.py",
)
GROWS = 256  # positions, at which a cache grows


SEQUENCES = itertools.count()


def run(verifier: LocalVerifier, prompt: tuple[int, ...], count: int) -> tuple[tuple[int, ...], int]:
    """The tokens, and how many of the prompt's were cached."""
    request = Request(next(SEQUENCES), prompt, count, conversation=1)
    rounds = list(Engine(verifier, LookupDrafter(), budgets=chain_of(5)).run([request]))
    return tuple(token for (verdict,) in rounds for token in verdict.tokens), rounds[0][0].cached_tokens


def talk(world: World) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A prompt that ends just before a cache must grow, and its plain continuation, beyond that place."""
    orbit = decode(world.target, (87,), 40).tokens
    prompt = tuple((orbit * 7)[: GROWS - 2])
    return prompt, decode(world.target, prompt, 24).tokens


@both
def test_a_cache_is_whole_wherever_its_growing_is_interrupted(arithmetic: str) -> None:
    interrupts = Interrupts("decoder/cache.py", "decoder/memory.py")
    target = make_world(arithmetic).target

    def full() -> Cache:
        cache = target.new_cache()
        cache.place(range(-1, GROWS - 1))
        return cache

    lines = interrupts.count(partial(full().place, [GROWS - 1]))
    assert lines > 10
    for at in range(lines):
        cache = full()
        interrupts.during(partial(cache.place, [GROWS - 1]), at)
        keys, values, tags, _ = cache._memory
        assert keys.shape == values.shape
        assert keys.shape[:2] == tags.shape
        assert keys.shape[1] >= cache._used
        cache.discard()
        cache.place(range(-1, GROWS))
        cache.addresses()


@both
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.prove)], ids=["some", "all"])
def test_wherever_a_turn_is_interrupted_the_next_one_is_right(arithmetic: str, step: int) -> None:
    """Interrupted while the cache grows, while a path is committed, while the turn ends: at every line of them."""
    world, interrupts = make_world(arithmetic), Interrupts(*FILES)
    prompt, truth = talk(world)

    def turn(verifier: LocalVerifier, said: int) -> None:
        tokens, _ = run(verifier, (*prompt, *truth[:said]), 9)
        assert tokens == truth[said : said + 9]

    def begun() -> LocalVerifier:
        verifier = LocalVerifier(world.target)
        turn(verifier, 0)
        return verifier

    ready = begun()
    lines = interrupts.count(partial(turn, ready, 9))
    assert lines > 300
    kept = left = 0
    for at in range(0, lines, step if arithmetic == "auto" else 5 * step):
        verifier = begun()
        interrupts.during(partial(turn, verifier, 9), at)
        tokens, cached = run(verifier, (*prompt, *truth[:9]), 9)
        assert tokens == truth[9:18]
        kept += cached > 0
        left += bool(verifier.caches._caches)
    assert kept, "what had been read is kept where it can be"
    assert left < lines // step / 20, "nothing is left, but where the freeing itself was interrupted"


def test_a_cache_whose_parts_disagree_is_never_handed_to_native_code() -> None:
    cache = make_world().target.new_cache()
    cache.place([-1, 0])
    cache._memory = cache._memory._replace(values=cache._memory.values[:, :1])
    with pytest.raises(ContractError, match="a cache has room for 256 keys, 1 values and 256 tags, expected the same"):
        cache.addresses()
