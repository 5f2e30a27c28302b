"""Sequences of one conversation: what their prompts begin with in common is read once, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches, KeptCaches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget, Needs, Request, Turn, Verdict
from foretoken.text.stopping import StopsAfter
from foretoken.verification.local import LocalVerifier
from tests.contracts.stage import Stage
from tests.contracts.table import TABLE
from tests.engine.common import both
from tests.fakes import FarVerifier
from tests.interrupts import interrupted_behind_the_commit
from tests.world import LONGEST, Snapshot, chain_of, make_world
from tests.world import read as read_whole


def run(
    verifier: LocalVerifier,
    drafter: Drafter,
    request: Request,
    *,
    budgets: Sequence[Budget] = (),
    prompt_rows: int = 256,
) -> tuple[list[Verdict], Snapshot]:
    """All verdicts of a request, and its cache as it stood at the end."""
    verdicts = []
    engine = Engine(verifier, drafter, budgets=budgets or chain_of(5), schedule=Schedule(prompt_rows=prompt_rows))
    for (verdict,) in engine.run([request]):
        verdicts.append(verdict)
        if verdict.finish_reason is not None:
            snapshot = Snapshot(verifier.caches[request.sequence])
    return verdicts, snapshot


def tokens_of(verdicts: Sequence[Verdict]) -> tuple[int, ...]:
    return tuple(token for verdict in verdicts for token in verdict.tokens)


def logits_of(verdicts: Sequence[Verdict]) -> torch.Tensor:
    return torch.cat([verdict.logits for verdict in verdicts if verdict.logits is not None])


def after(count: int | None) -> StopsAfter:
    """Stops after so many tokens, in mid-block."""
    left = itertools.count(1)
    return lambda token: next(left) == count


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each check of the target had."""
    counts: list[int] = []
    check, target = Decoder.check, make_world().target

    def counted(self: Decoder, rows: Rows, *more: Any, **named: Any) -> Outputs:
        if self is target:
            counts.append(len(rows))
        return check(self, rows, *more, **named)

    monkeypatch.setattr(Decoder, "check", counted)
    return counts


def read(passes: Sequence[int], verdicts: Sequence[Verdict]) -> list[int]:
    """How many rows each pass of the prompt had; what its verdicts say of it is that."""
    assert len(passes) == len(verdicts)
    rows = list(passes[: sum(verdict.round == 0 for verdict in verdicts)])
    assert [verdict.read for verdict in verdicts] == rows + [0] * (len(verdicts) - len(rows))
    return rows


@pytest.mark.parametrize("name", TABLE)
def test_a_turn_is_what_plain_decoding_gives_whatever_drafts(name: str, passes: list[int]) -> None:
    world, caches = make_world(), Caches()
    plain = world.plains[0]
    drafter = TABLE[name].make(Stage(world, caches, "tree"))
    stop_after: int | None = None
    verifier = LocalVerifier(
        world.target, caches, extractors=getattr(drafter, "extractors", ()), stops=lambda request: after(stop_after)
    )
    done = 0
    for count, stop_after in ((3, None), (9, 4), (9, 2), (LONGEST - 9, None)):
        prompt = plain.prompt + plain.tokens[:done]
        passes.clear()
        request = Request(0, prompt, count, keep_logits=True, conversation=7)
        verdicts, cache = run(verifier, drafter, request, budgets=TABLE[name].budgets(5))
        before, done = done, done + (stop_after or count)
        assert tokens_of(verdicts) == plain.tokens[before:done]
        assert torch.equal(logits_of(verdicts), plain.logits[before:done])
        assert cache.digest_at(len(plain.prompt) + done - 1) == plain.digests[done]
        new = 1 if before else len(prompt)  # of the turn before, all but its last token was read
        assert verdicts[0].cached_tokens == len(prompt) - new
        assert read(passes, verdicts) == [new]
    assert done == LONGEST


@both
def test_what_is_not_in_common_is_cut_off_and_read_anew(arithmetic: str) -> None:
    world, caches = make_world(arithmetic), Caches()
    plain, other = world.plains
    verifier = LocalVerifier(world.target, caches)
    for common in (0, 1, 20, len(plain.prompt) - 1):
        differs = (*plain.prompt[:common], *(token + 1 for token in plain.prompt[common:]), *other.prompt)
        run(verifier, LookupDrafter(), Request(0, differs, 9, conversation=3), prompt_rows=5)
        again = Request(1, plain.prompt, 20, keep_logits=True, conversation=3)
        verdicts, cache = run(verifier, LookupDrafter(), again, prompt_rows=5)
        chunks = [verdict for verdict in verdicts if verdict.round == 0]
        assert [verdict.cached_tokens for verdict in chunks] == [0] * (len(chunks) - 1) + [common]
        assert len(chunks) == -(-(len(plain.prompt) - common) // 5)
        assert tokens_of(verdicts) == plain.tokens
        assert torch.equal(logits_of(verdicts), plain.logits)
        assert cache.digest_at(len(plain.prompt) + 19) == plain.digests[20]


def test_the_same_prompt_again_reads_its_last_token_only(passes: list[int]) -> None:
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    for _ in range(2):
        passes.clear()
        verdicts, _ = run(verifier, LookupDrafter(), Request(0, plain.prompt, 20, conversation=0))
        assert tokens_of(verdicts) == plain.tokens
    assert read(passes, verdicts) == [1]


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
    assert verifier._sequences == {}
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
        engine = Engine(verifier, LookupDrafter(), budgets=chain_of(5))
        broken = engine.run([Request(0, plain.prompt, 20, conversation=1)])
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
    verifier = LocalVerifier(world.target)
    check, checks = Decoder.check, 0

    def interrupted(self: Decoder, rows: Rows, *more: Any) -> Outputs:
        nonlocal checks
        checks += 1
        outputs = check(self, rows, *more)
        if checks == 4:
            raise KeyboardInterrupt
        return outputs

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(verifier, LookupDrafter(), Request(0, plain.prompt, 20, conversation=1), prompt_rows=8)
    verdicts, cache = run(verifier, LookupDrafter(), Request(0, plain.prompt, 20, conversation=1))
    assert verdicts[0].cached_tokens == 24
    assert tokens_of(verdicts) == plain.tokens
    assert cache.digest_at(len(plain.prompt) + 19) == plain.digests[20]


def test_what_was_committed_but_not_noted_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption between the two: the cache holds more than anybody knows the tokens of."""
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    (verdict,) = read_whole(verifier, [Request(0, plain.prompt, 20, conversation=1)])
    with interrupted_behind_the_commit(monkeypatch):
        verifier.submit([Turn(0, 1, len(plain.prompt) + 1, 5, 5).chain(plain.tokens[1:4], "x")])
    assert verifier.caches[0].length > len(plain.prompt)
    verifier.end(0)
    prompt = (*plain.prompt, *verdict.tokens)
    verdicts, _ = run(verifier, NothingDrafter(), Request(0, prompt, 19, conversation=1))
    assert verdicts[0].cached_tokens == len(plain.prompt)
    assert tokens_of(verdicts) == plain.tokens[1:]


class Hidden(LookupDrafter):
    needs = Needs(hidden=(3,))


def test_who_needs_hidden_states_of_the_prompt_gets_all_of_them(passes: list[int]) -> None:
    """Also of what was read in an earlier turn: they were kept, to the bit."""
    world = make_world()
    plain = world.plains[0]
    verifier = LocalVerifier(world.target)
    hidden = []
    for cached in (0, len(plain.prompt) - 1):
        passes.clear()
        verdicts, _ = run(verifier, Hidden(), Request(0, plain.prompt, 20, conversation=1))
        assert verdicts[0].cached_tokens == cached
        assert read(passes, verdicts) == [len(plain.prompt) - cached]
        assert tokens_of(verdicts) == plain.tokens
        features = [verdict.features for verdict in verdicts]
        assert features[0] is not None
        assert features[0].start == 0
        assert len(features[0].tensors["hidden.3"]) == verdicts[0].position == len(plain.prompt)
        hidden.append(torch.cat([each.tensors["hidden.3"] for each in features if each is not None]))
    assert torch.equal(hidden[0], hidden[1])


def test_a_kept_cache_is_that_of_the_tokens_in_common() -> None:
    target = make_world().target
    kept: KeptCaches[str] = KeptCaches()

    def filled(tokens: Sequence[int]) -> Cache:
        cache = target.new_cache()
        rows = chain(cache, tokens)
        target.forward(rows)
        cache.commit(range(len(tokens)), rows.writer)
        return cache

    assert kept.take(0, [1, 2]) is None
    kept.put(0, filled([1, 2, 3, 4, 5]), [1, 2, 3, 4], "more")
    found = kept.take(0, [1, 2, 3, 9, 5])
    assert found is not None
    assert found.more == "more"
    assert found.cache.length == 3
    assert found.cache.digest() == filled([1, 2, 3]).digest()
    assert kept.take(0, [1, 2, 3, 9, 5]) is None, "it belongs to whoever took it"
