"""Requests that begin as others did: what others have read is not read again, and no bit differs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foretoken
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.types import Needs, PromptChunk, Request
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import LEAST, Prefixes
from foretoken.verification.uncached import UncachedVerifier
from tests.contracts.table import TABLE
from tests.contracts.test_lossless import SAMPLING, VERIFIERS
from tests.engine.prefix_server import LENGTH, SHARED, Server, alike, engine_of, plainly
from tests.engine.test_features import KINDS, Watches, expect, text, truth
from tests.fakes import Scripted
from tests.world import GREEDY, LONGEST, chain_of, make_world


def serve(name: str, verifier: str, sampled: str) -> None:
    """Requests that begin as a live one, as one that was cancelled, as one that has ended, and go on behind one."""
    sampling = SAMPLING[sampled]
    entry = TABLE[name]
    server = Server(entry.make, alike(sampling), budgets=entry.budgets(5), verifier=verifier, sampling=sampling)
    # begins as a live one does; stops at a stop string, perhaps within a draft
    server.admit(0, 8)
    server.run(until=0)
    server.admit(1, stop=6)
    server.run()
    server.expect(0, 8, cached=0)
    server.expect(1, 7, cached=SHARED)
    if sampling == GREEDY:  # its own text sent again goes on: it takes over what was kept
        server.admit(0, 12, said=8)
        server.admit(1, 3, said=2)
        server.run()
        server.expect(0, 12, cached=LENGTH + 8 - 1)
        server.expect(1, 3, cached=len(server.world.plains[1].prompt) + 2 - 1)
    # both together, of which one is cancelled under way
    server.admit(0)
    server.admit(1)
    server.run(until=0)
    server.step()
    server.engine.cancel(0)
    server.expect(0, 1, cached=LENGTH - 1, ended=False)
    server.run()
    server.expect(1, LONGEST, cached=len(server.world.plains[1].prompt) - 1)
    server.admit(0)
    server.run()
    server.expect(0, LONGEST, cached=LENGTH - 1)
    server.close()
    assert server.prefixes.hits > 0
    if sampling == GREEDY and "drafted" in entry.shows and "left out" not in name:
        assert sum(sum(record.drafted.values()) for record in server.records) > 0


NAMES = list(TABLE)
LATE = list(VERIFIERS)


@pytest.mark.parametrize("name", NAMES)
def test_with_a_prefix_every_drafter_gives_what_plain_decoding_gives(name: str) -> None:
    at = NAMES.index(name)
    serve(name, LATE[at % len(LATE)], "0.8, top-p" if at % 2 else "greedy")


@pytest.mark.prove
@pytest.mark.parametrize("sampled", SAMPLING)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", NAMES)
def test_with_a_prefix_all_circumstances_give_what_plain_decoding_gives(name: str, verifier: str, sampled: str) -> None:
    serve(name, verifier, sampled)


def test_of_prompts_that_arrive_together_the_first_is_read_and_the_others_begin_with_what_it_has_read() -> None:
    server = Server(plainly, alike())
    server.admit(0, 4)
    server.admit(1, 4)
    server.run()
    server.expect(0, 4, cached=0)
    server.expect(1, 4, cached=SHARED)
    assert server.prefixes.queries == LENGTH + len(server.world.plains[1].prompt)
    assert server.prefixes.hits == SHARED
    server.close()


def test_without_a_store_nothing_is_kept_and_conversations_and_completions_are_as_they_were() -> None:
    plain = make_world().plains[0]
    for prefixes in (None, Prefixes(1000)):
        verifier = LocalVerifier(make_world().target, prefixes=prefixes)
        for conversation, cached in ((None, 0), (1, 0), (1, LENGTH - 1), (None, 0 if prefixes is None else LENGTH - 1)):
            requests = [
                Request(0, plain.prompt, 4, conversation=conversation),
                Request(1, plain.prompt, 4, prompt_of=0),
            ]
            verdicts = [verdict for step in engine_of(verifier).run(requests) for verdict in step]
            assert sum(verdict.cached_tokens for verdict in verdicts if verdict.sequence == 0) == cached
            assert sum(verdict.cached_tokens for verdict in verdicts if verdict.sequence == 1) == LENGTH - 1
            for s in (0, 1):
                said = [token for verdict in verdicts if verdict.sequence == s for token in verdict.tokens]
                assert tuple(said) == plain.tokens[:4]
    assert prefixes is not None
    assert prefixes.queries == 2 * LENGTH


def test_without_a_cache_of_keys_and_values_no_prefix_is_kept() -> None:
    plain, prefixes = make_world().plains[0], Prefixes(1000)
    verifier = UncachedVerifier(make_world().target, prefixes=prefixes)
    for _ in range(2):
        rounds = list(engine_of(verifier).run([Request(0, plain.prompt, 4)]))
        assert tuple(token for (verdict,) in rounds for token in verdict.tokens) == plain.tokens[:4]
        assert rounds[0][0].cached_tokens == 0
    assert (prefixes.positions, prefixes.queries) == (0, 0)


# -- features ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_features_of_a_prefix_are_those_of_when_it_was_read(kind: str) -> None:
    """Whether it was kept whole, is copied of a live sequence, or was kept without the features that are needed."""
    world, needs = alike(), KINDS[kind]
    texts = {s: text(plain) for s, plain in enumerate(world.plains)}
    drafter = Watches(texts, needs)
    prefixes = Prefixes(1000)
    verifier = LocalVerifier(world.target, extractors=drafter.extractors, prefixes=prefixes)
    engines = {
        which: Engine(verifier, which, budgets=chain_of(5), schedule=Schedule(prompt_rows=9, shares=prefixes.least))
        for which in (drafter, Scripted(texts))
    }

    def serve(which: Any, sequence: int, count: int, said: int = 0, also: int | None = None) -> list[int]:
        """How many tokens were cached."""
        drafter.seen.clear()
        plain, cached = world.plains[sequence], {}
        requests = [Request(sequence, plain.prompt + plain.tokens[:said], count)]
        if also is not None:
            requests.append(Request(also, world.plains[also].prompt, count))
        for verdicts in engines[which].run(requests):
            for verdict in verdicts:
                assert verdict.error is None
                cached[verdict.sequence] = cached.get(verdict.sequence, 0) + verdict.cached_tokens
        for request in requests if which is drafter else ():
            length = len(request.prompt) + count - 1
            whole = texts[request.sequence][:length]
            expect(drafter.seen[request.sequence], needs, truth(world.target, whole), length)
        return [cached[request.sequence] for request in requests]

    nobody = engines.keys() - {drafter}
    (without,) = nobody
    again = not needs.of_passes  # what was read without features serves whoever needs none of passes
    other = len(world.plains[1].prompt)
    assert serve(without, 1, 3) == [0]
    assert serve(drafter, 0, 4, also=1) == [SHARED if again else 0, other - 1 if again else SHARED]
    assert serve(drafter, 0, 4, said=4) == [LENGTH + 3]  # it goes on
    assert serve(without, 0, 4, said=8) == [LENGTH + 7]  # and without features, which are not lost
    assert serve(drafter, 0, 4, said=8) == [LENGTH + 7]
    assert serve(drafter, 1, 4) == [other - 1]
    assert prefixes.positions <= 4 * (LENGTH + 12)


def test_features_that_one_request_does_not_need_are_there_for_the_next() -> None:
    world, prefixes = alike(), Prefixes(1000)
    verifier = LocalVerifier(world.target, prefixes=prefixes)
    plain, before = world.plains[0], LENGTH + 4 - 1
    for layers, said, cached in (((2, 1), 0, 0), ((1,), 4, before), ((2, 1), 8, before), ((), 8, before + 4)):
        drafter = Watches({0: text(plain)}, Needs(hidden=layers)) if layers else Scripted({0: text(plain)})
        engine = Engine(verifier, drafter, budgets=chain_of(5))
        rounds = list(engine.run([Request(0, plain.prompt + plain.tokens[:said], 4)]))
        assert rounds[0][0].cached_tokens == cached
        if isinstance(drafter, Watches):
            length = LENGTH + said + 4 - 1
            expect(drafter.seen[0], drafter.needs, truth(world.target, text(plain)[:length]), length)


@pytest.mark.parametrize(
    "name",
    [
        *("eagle3", "eagle2, tree", "mixture", "mixture, whose features come with the verdicts"),
        *("eagle3, published", "dflash"),
    ],
)
def test_behind_a_prefix_a_trained_drafter_drafts_as_it_does_without(name: str) -> None:
    entry, accepted = TABLE[name], []
    for most in (1000, 0):
        server = Server(entry.make, alike(), budgets=entry.budgets(5), prefixes=Prefixes(most))
        server.admit(1)
        server.run()
        server.records.clear()
        server.admit(0)
        server.run()
        assert server.cached(0) == (SHARED if most else 0)
        accepted.append([(record.drafted[0], record.accepted[0]) for record in server.records if record.drafted])
        server.close()
    assert accepted[0] == accepted[1]
    assert sum(taken for _, taken in accepted[0]) > 0


def test_the_embedded_drafter_drafts_behind_a_prefix_as_it_does_without() -> None:
    model = foretoken.load("stdlib-7m", draft="moa", pace="fixed")
    prompt = "import os\n\n\ndef main(argv):\n    for name in argv[1:]:\n        print(os.path.join(name,"
    first = model.generate(prompt, max_new_tokens=16, ignore_eos=True, keep_logits=True)
    verifier = model._verifier
    assert isinstance(verifier, LocalVerifier)
    verifier.prefixes = Prefixes(1000)
    for cached in (0, first.prompt_tokens - 1):
        again = model.generate(prompt, max_new_tokens=16, ignore_eos=True, keep_logits=True)
        assert again.cached_tokens == cached
        assert again.tokens == first.tokens
        assert first.logits is not None
        assert again.logits is not None
        assert torch.equal(again.logits, first.logits)
        assert (again.stats.draft_tokens, again.stats.accepted_tokens) == (
            first.stats.draft_tokens,
            first.stats.accepted_tokens,
        )
    assert first.stats.accepted_tokens > 0
    assert first.prompt_tokens > LEAST


def test_a_prompt_that_is_cancelled_while_it_is_read_leaves_what_was_read() -> None:
    server = Server(plainly, alike())
    server.admit(0)
    server.step()
    server.step()
    server.engine.cancel(0)
    server.admit(0, 4)
    server.run()
    server.expect(0, 4, cached=18)
    server.close()


def test_a_request_with_a_prompt_that_waits_for_another_reads_what_is_new() -> None:
    """Its first chunk comes before the other sequence has read the prompt."""
    plain, prefixes = make_world().plains[0], Prefixes(1000)
    verifier = LocalVerifier(make_world().target, prefixes=prefixes)
    verifier.admit(Request(0, plain.prompt, 4))
    verifier.result(verifier.submit([], [PromptChunk(0, 20)]))
    verifier.admit(Request(1, plain.prompt, 4))
    (verdict,) = verifier.result(verifier.submit([], [PromptChunk(1, 99)]))
    assert (verdict.cached_tokens, verdict.read, verdict.tokens) == (20, LENGTH - 20, plain.tokens[:1])
