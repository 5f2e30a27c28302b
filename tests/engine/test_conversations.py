"""Sequences of one conversation: what their prompts begin with in common is read once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches, KeptCaches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.engine import Engine
from foretoken.types import Drafter, Needs, Request, Turn, Verdict
from foretoken.verification.local import LocalVerifier
from tests.contracts.table import TABLE, Stage
from tests.engine.common import both
from tests.fakes import FarVerifier
from tests.world import LONGEST, Snapshot, make_world


def run(
    verifier: LocalVerifier, drafter: Drafter, request: Request, stop_after: int | None = None
) -> tuple[list[Verdict], Snapshot]:
    """All verdicts of a request, and its cache as it stood at the end; `stop_after` so many tokens, in mid-block."""
    count = 0

    def stops_after(sequence: int, token: int) -> bool:
        nonlocal count
        count += 1
        return count == stop_after

    verdicts = []
    for (verdict,) in Engine(verifier, drafter, num_speculative_tokens=5).run([request], stops_after):
        verdicts.append(verdict)
        if verdict.finish_reason is not None:
            snapshot = Snapshot(verifier.caches[request.sequence])
    return verdicts, snapshot


def tokens_of(verdicts: Sequence[Verdict]) -> tuple[int, ...]:
    return tuple(token for verdict in verdicts for token in verdict.tokens)


def logits_of(verdicts: Sequence[Verdict]) -> torch.Tensor:
    return torch.cat([verdict.logits for verdict in verdicts if verdict.logits is not None])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each pass of a prompt had."""
    counts: list[int] = []
    forward, target = Decoder.forward, make_world().target

    def counted(self: Decoder, rows: Rows) -> torch.Tensor:
        if self is target and rows.segments[0].cache.parent is None:  # not what a fake runs on a view
            counts.append(len(rows))
        return forward(self, rows)

    monkeypatch.setattr(Decoder, "forward", counted)
    return counts


@pytest.mark.parametrize("name", TABLE)
def test_a_turn_is_what_plain_decoding_gives_whatever_drafts(name: str, read: list[int]) -> None:
    world, caches = make_world(), Caches()
    plain = world.plains[0]
    drafter = TABLE[name].make(Stage(world, caches, "tree"))
    verifier = LocalVerifier(world.target, caches, needs=drafter.needs)
    done = 0
    for count, stop_after in ((3, None), (9, 4), (9, 2), (LONGEST - 9, None)):
        prompt = plain.prompt + plain.tokens[:done]
        read.clear()
        request = Request(0, prompt, count, keep_logits=True, conversation=7)
        verdicts, cache = run(verifier, drafter, request, stop_after)
        before, done = done, done + (stop_after or count)
        assert tokens_of(verdicts) == plain.tokens[before:done]
        assert torch.equal(logits_of(verdicts), plain.logits[before:done])
        assert cache.digest_at(len(plain.prompt) + done - 1) == plain.digests[done]
        # of the turn before, all but its last token was read; of hidden states nothing is kept
        new = len(prompt) if not before or drafter.needs.hidden else 1
        assert verdicts[0].cached_tokens == len(prompt) - new
        assert sum(read) == new
    assert done == LONGEST


@both
def test_what_is_not_in_common_is_cut_off_and_read_anew(arithmetic: str) -> None:
    world, caches = make_world(arithmetic), Caches()
    plain, other = world.plains
    verifier = LocalVerifier(world.target, caches, prefill_chunk=5)
    for common in (0, 1, 20, len(plain.prompt) - 1):
        differs = (*plain.prompt[:common], *(token + 1 for token in plain.prompt[common:]), *other.prompt)
        run(verifier, LookupDrafter(), Request(0, differs, 9, conversation=3))
        verdicts, cache = run(verifier, LookupDrafter(), Request(1, plain.prompt, 20, keep_logits=True, conversation=3))
        assert verdicts[0].cached_tokens == common
        assert tokens_of(verdicts) == plain.tokens
        assert torch.equal(logits_of(verdicts), plain.logits)
        assert cache.digest_at(len(plain.prompt) + 19) == plain.digests[20]


def test_the_same_prompt_again_reads_its_last_token_only(read: list[int]) -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    for _ in range(2):
        read.clear()
        verdicts, _ = run(verifier, LookupDrafter(), Request(0, plain.prompt, 20, conversation=0))
        assert tokens_of(verdicts) == plain.tokens
    assert read == [1]


def test_conversations_are_kept_apart_and_others_are_not_kept() -> None:
    world = make_world()
    plain, other = world.plains
    verifier = LocalVerifier(world.target)
    for request in (
        Request(0, plain.prompt, 4, conversation=1),
        Request(1, other.prompt, 4, conversation=2),
        Request(2, plain.prompt, 4),
    ):
        run(verifier, NothingDrafter(), request)
    assert sorted(verifier._kept._kept) == [1, 2]
    assert verifier._talks == {}
    assert verifier.caches._caches == {}
    for conversation, prompt in ((1, plain.prompt), (2, other.prompt)):
        verdicts, _ = run(verifier, NothingDrafter(), Request(3, prompt, 1, conversation=conversation))
        assert verdicts[0].cached_tokens == len(prompt) - 1
    FarVerifier(verifier).forget(1)
    verifier.forget(1)
    verifier.forget(99)
    verdicts, _ = run(verifier, NothingDrafter(), Request(3, plain.prompt, 1, conversation=1))
    assert verdicts[0].cached_tokens == 0


def test_a_run_that_is_closed_keeps_what_was_read() -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    for rounds in range(1, 5):
        broken = Engine(verifier, LookupDrafter(), num_speculative_tokens=5).run(
            [Request(0, plain.prompt, 20, conversation=1)]
        )
        said = [token for _ in range(rounds) for token in next(broken)[0].tokens]
        broken.close()
        prompt = (*plain.prompt, *said)
        verdicts, _ = run(verifier, LookupDrafter(), Request(0, prompt, 20 - len(said), conversation=1))
        assert verdicts[0].cached_tokens == len(prompt) - 1
        assert (*said, *tokens_of(verdicts)) == plain.tokens
        verifier.forget(1)


def test_a_prompt_that_is_broken_off_keeps_the_chunks_that_were_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target, prefill_chunk=8)
    forward, passes = Decoder.forward, 0

    def interrupted(self: Decoder, rows: Rows) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes == 4:
            raise KeyboardInterrupt
        return forward(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.begin([Request(0, plain.prompt, 20, conversation=1)])
    verdicts, cache = run(verifier, LookupDrafter(), Request(0, plain.prompt, 20, conversation=1))
    assert verdicts[0].cached_tokens == 24
    assert tokens_of(verdicts) == plain.tokens
    assert cache.digest_at(len(plain.prompt) + 19) == plain.digests[20]


def test_what_was_committed_but_not_noted_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption between the two: the cache holds more than anybody knows the tokens of."""
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    (verdict,) = verifier.begin([Request(0, plain.prompt, 20, conversation=1)])
    commit = Cache.commit

    def interrupted(self: Cache, path: Sequence[int], writer: int) -> None:
        commit(self, path, writer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.submit([Turn(0, 1, len(plain.prompt) + 1, 5, 5).chain(plain.tokens[1:4], "x")])
    assert verifier.caches[0].length > len(plain.prompt)
    verifier.end(0)
    prompt = (*plain.prompt, *verdict.tokens)
    verdicts, _ = run(verifier, NothingDrafter(), Request(0, prompt, 19, conversation=1))
    assert verdicts[0].cached_tokens == len(plain.prompt)
    assert tokens_of(verdicts) == plain.tokens[1:]


class Hidden(LookupDrafter):
    needs = Needs(hidden=True)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            assert verdict.features is not None
            if verdict.round == 0:
                assert verdict.features.start == 0
                assert len(verdict.features.tensors["hidden"]) == verdict.position
        super().observe(verdicts)


def test_who_needs_hidden_states_of_the_prompt_gets_all_of_them() -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target, needs=Hidden.needs)
    for _ in range(2):
        verdicts, _ = run(verifier, Hidden(), Request(0, plain.prompt, 20, conversation=1))
        assert verdicts[0].cached_tokens == 0
        assert tokens_of(verdicts) == plain.tokens


def test_a_kept_cache_is_that_of_the_tokens_in_common() -> None:
    target = make_world().target
    kept = KeptCaches()

    def filled(tokens: Sequence[int]) -> Cache:
        cache = target.new_cache()
        rows = chain(cache, tokens)
        target.forward(rows)
        cache.commit(range(len(tokens)), rows.writer)
        return cache

    assert kept.take(0, [1, 2]) is None
    kept.put(0, filled([1, 2, 3, 4, 5]), [1, 2, 3, 4])
    cache = kept.take(0, [1, 2, 3, 9, 5])
    assert cache is not None
    assert cache.length == 3
    assert cache.digest() == filled([1, 2, 3]).digest()
    assert kept.take(0, [1, 2, 3, 9, 5]) is None, "it belongs to whoever took it"
