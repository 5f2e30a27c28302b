"""Requests that begin as others did: what others have read is not read again, and no bit differs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

import foretoken
from foretoken.acceptance.walk import WORTH_SHARING as LEAST
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows, chain
from foretoken.drafters.nothing import NothingDrafter
from foretoken.loop.engine import Engine
from foretoken.loop.schedule import Schedule
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Needs, PromptChunk, Request, SamplingParams, Verdict
from foretoken.verification.local import LocalVerifier
from foretoken.verification.prefixes import Prefixes
from foretoken.verification.uncached import UncachedVerifier
from tests.contracts.table import TABLE, Stage
from tests.contracts.test_lossless import SAMPLING, VERIFIERS
from tests.engine.test_features import KINDS, Watches, expect, text, truth
from tests.fakes import Scripted
from tests.interrupts import Interrupts
from tests.world import GREEDY, LONGEST, Plain, Snapshot, World, chain_of, decode, make_world

SHARED = 25  # tokens that both prompts begin with
LENGTH = 36  # of the first prompt


@cache
def alike(sampling: SamplingParams = GREEDY) -> World:
    """Two sequences, the second of which begins as the first does."""
    world = make_world(sampling=sampling)
    plain = world.plains[0]
    other = decode(world.target, (*plain.prompt[:SHARED], 7, *plain.prompt[3:9]), LONGEST, sampling)
    assert len(plain.prompt) == LENGTH
    return World(world.target, (plain, other))


class Server:
    """One loop and one verifier, which sequences join and leave. It keeps prefixes."""

    def __init__(
        self,
        make: Any,
        world: World,
        *,
        budgets: Any = (),
        prefixes: Prefixes | None = None,
        verifier: str = "near",
        sampling: SamplingParams = GREEDY,
        prompt_rows: int = 9,
    ) -> None:
        self.world, self.sampling = world, sampling
        self.caches = Caches()
        self.drafter: Drafter = make(Stage(world, self.caches, "chain"))
        self.prefixes = Prefixes(1000) if prefixes is None else prefixes
        self.stop: dict[int, int] = {}  # by sequence: the token that a stop string ends with
        self.verifier = LocalVerifier(
            world.target,
            self.caches,
            extractors=getattr(self.drafter, "extractors", ()),
            stops=lambda request: lambda token: token == self.stop.get(request.sequence),
            prefixes=self.prefixes,
        )
        wrap, ahead = VERIFIERS[verifier]
        self.near = self.verifier if wrap is None else wrap(self.verifier)
        self.records: list[RoundRecord] = []
        schedule = Schedule(prompt_rows=prompt_rows, ahead=ahead, shares=True)
        self.engine = Engine(
            self.near, self.drafter, budgets=budgets or chain_of(5), schedule=schedule, recorder=self.records.append
        )
        self.said: dict[int, int] = {}
        self.verdicts: dict[int, list[Verdict]] = {}
        self.ends: dict[int, Snapshot] = {}

    def admit(self, sequence: int, count: int = LONGEST, *, said: int = 0, stop: int | None = None) -> None:
        """A request whose prompt has so many of the first tokens of its text behind it. stop: the index of the token
        that it stops at."""
        plain = self.world.plains[sequence]
        self.stop.pop(sequence, None)
        if stop is not None:
            self.stop[sequence] = plain.tokens[stop]
        self.said[sequence], self.verdicts[sequence] = said, []
        prompt = plain.prompt + plain.tokens[:said]
        self.engine.admit(Request(sequence, prompt, count, keep_logits=True, sampling=self.sampling))

    def step(self) -> None:
        for verdict in self.engine.step():
            assert verdict.error is None
            self.verdicts[verdict.sequence].append(verdict)
            if verdict.last:
                self.ends[verdict.sequence] = Snapshot(self.caches[verdict.sequence])
                self.engine.cancel(verdict.sequence)

    def run(self, until: int | None = None) -> None:
        """To the end of all sequences, or until one has said something."""
        while self.engine.live and not (until is not None and self.tokens(until)):
            self.step()
        if not self.engine.live:
            self.engine.step()  # takes what is left of passes on guesses

    def tokens(self, sequence: int) -> tuple[int, ...]:
        return tuple(token for verdict in self.verdicts[sequence] for token in verdict.tokens)

    def cached(self, sequence: int) -> int:
        return sum(verdict.cached_tokens for verdict in self.verdicts[sequence])

    def expect(self, sequence: int, count: int, *, cached: int, ended: bool = True) -> None:
        """The sequence has said what plain decoding says, to the bit, and so many tokens of its prompt were cached."""
        plain, said = self.world.plains[sequence], self.said[sequence]
        got = self.tokens(sequence)
        assert len(got) >= count > 0
        assert got == plain.tokens[said : said + len(got)]
        logits = [verdict.logits for verdict in self.verdicts[sequence] if verdict.logits is not None]
        assert torch.equal(torch.cat(logits), plain.logits[said : said + len(got)])
        assert self.cached(sequence) == cached
        read = sum(verdict.read for verdict in self.verdicts[sequence])
        assert read == len(plain.prompt) + said - cached
        if ended:
            assert len(got) == count
            length = len(plain.prompt) + said + count - 1
            assert self.ends[sequence].digest_at(length) == plain.digests[said + count]

    def expect_kept(self) -> None:
        """What is kept is what a fresh cache holds after the same tokens, and no more than may be kept."""
        assert self.prefixes.positions <= self.prefixes.most_positions
        for _, kept in self.prefixes._known():
            assert kept.cache.length == len(kept.tokens)
            assert kept.cache.digest() == fresh(self.world.target, kept.tokens).digest()

    def close(self) -> None:
        self.engine.close()
        self.expect_kept()
        assert self.verifier._sequences == {}
        assert self.caches._caches == {}
        if self.near is not self.verifier and hasattr(self.near, "close"):
            self.near.close()


def fresh(target: Decoder, tokens: Sequence[int]) -> Cache:
    """A cache in which these tokens were read, in one pass."""
    found = target.new_cache()
    rows = chain(found, list(tokens))
    target.forward(rows)
    found.commit(range(len(tokens)), rows.writer)
    return found


def plainly(stage: Stage) -> Drafter:
    return NothingDrafter()


def scripted(stage: Stage) -> Drafter:
    return Scripted(stage.truth, stage.shape)


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


def engine_of(verifier: LocalVerifier) -> Engine:
    return Engine(verifier, NothingDrafter(), budgets=chain_of(3))


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
        which: Engine(verifier, which, budgets=chain_of(5), schedule=Schedule(prompt_rows=9, shares=True))
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
    "name", ["eagle3", "eagle2, tree", "mixture", "mixture, whose features come with the verdicts"]
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


# -- what breaks ------------------------------------------------------------------------------------------------------

FILES = ("verification/local.py", "verification/prefixes.py", "decoder/caches.py", "decoder/cache.py")
STEPS = pytest.mark.parametrize(
    ("files", "step"),
    [(FILES[:1], 1), (FILES, 4), pytest.param(FILES, 1, marks=pytest.mark.prove)],
    ids=["the verifier's", "some", "all"],
)


def begun() -> Server:
    """A server with one sequence that ended, one under way, and one that begins as the first did."""
    server = Server(scripted, alike())
    server.admit(0, 6)
    server.run()
    server.admit(1)
    server.run(until=1)
    server.admit(0)
    return server


def go_on(server: Server) -> None:
    """Whatever was interrupted: both sequences, and the next one, are what they would have been."""
    server.run()
    plains = server.world.plains
    for s in (0, 1):
        assert server.tokens(s) in (plains[s].tokens, ())
        if server.tokens(s):
            assert server.ends[s].digest_at(len(plains[s].prompt) + LONGEST - 1) == plains[s].digests[LONGEST]
    server.expect_kept()
    server.admit(0)
    server.run()
    assert server.tokens(0) == server.world.plains[0].tokens
    server.close()


@STEPS
def test_wherever_a_beginning_is_interrupted_it_is_made_again(files: Sequence[str], step: int) -> None:
    def begin(server: Server) -> None:
        server.verifier._begin(server.verifier._sequences[0])

    interrupts, server = Interrupts(*files), begun()
    lines = interrupts.count(partial(begin, server))
    assert lines > 10
    assert server.caches[0].length == LENGTH - 1
    again = 0
    for at in range(0, lines, step):
        server = begun()
        interrupts.during(partial(begin, server), at)
        server.expect_kept()
        server.run(until=0)
        again += server.cached(0) == LENGTH - 1
        go_on(server)
    assert again == len(range(0, lines, step)), "what is copied is lost to nobody"


@STEPS
def test_wherever_an_end_is_interrupted_the_other_sequences_go_on(files: Sequence[str], step: int) -> None:
    def end(server: Server) -> None:
        server.engine.cancel(0)

    def ready() -> Server:
        server = begun()
        server.run(until=0)
        server.step()
        return server

    interrupts = Interrupts(*files)
    lines = interrupts.count(partial(end, ready()))
    assert lines > 8
    for at in range(0, lines, step):
        server = ready()
        interrupts.during(partial(end, server), at)
        server.expect_kept()
        memories = [kept.cache._memory.keys.data_ptr() for _, kept in server.prefixes._known()]
        live = [each._memory.keys.data_ptr() for s, each in server.caches._caches.items() if s != 0]
        assert len({*memories, *live}) == len(memories) + len(live), "each memory is somebody's alone"
        server.verifier.end(0)
        server.verdicts[0] = []
        go_on(server)


@pytest.mark.parametrize("after", range(4))
def test_a_pass_that_breaks_off_behind_a_prefix_is_made_again(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = begun()
    check, passes = Decoder.check, iter(range(after))

    def broken(self: Decoder, rows: Rows, *more: Any, **named: Any) -> Outputs:
        found = check(self, rows, *more, **named)
        if next(passes, None) is None:
            raise MemoryError
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "check", broken)
        with pytest.raises(MemoryError):
            server.run()
    server.run()
    server.expect(0, LONGEST, cached=LENGTH - 1)
    server.expect(1, LONGEST, cached=SHARED)
    server.close()


def test_of_a_round_that_was_broken_off_while_it_committed_only_what_is_known_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(scripted, alike())
    server.admit(0)
    server.run(until=0)
    commit = Cache.commit

    def interrupted(self: Cache, path: Sequence[int], writer: int) -> None:
        commit(self, path, writer)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            server.run()
    known = LENGTH + len(server.tokens(0))  # the row of the last one was committed, too
    assert server.caches[0].length > known
    server.engine.cancel(0)
    assert server.prefixes.positions == known
    server.expect_kept()
    server.admit(0)
    server.run()
    server.expect(0, LONGEST, cached=LENGTH - 1)
    server.close()


class Fails:
    """An extractor that fails for one sequence's text."""

    name = "fails"

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        if self.armed:
            raise foretoken.ForetokenError("it fails")
        return {}


def test_of_a_sequence_that_fails_nothing_is_kept_nor_what_it_may_have_begun_with() -> None:
    world, fails, prefixes = make_world(), Fails(), Prefixes(1000)
    verifier = LocalVerifier(world.target, extractors=[fails], prefixes=prefixes)
    plain, other = world.plains

    def one(plain: Plain) -> Verdict:
        engine = engine_of(verifier)
        engine._drafter.needs = Needs(extractors=("fails",))
        return [verdict for (verdict,) in engine.run([Request(0, plain.prompt, 2)])][-1]

    assert one(plain).error is one(other).error is None
    assert prefixes.positions == 2 * (LENGTH + 1)
    fails.armed = True
    assert one(plain).error is not None
    assert [kept.tokens[:LENGTH] for _, kept in prefixes._known()] == [other.prompt]


# -- the store --------------------------------------------------------------------------------------------------------


def keep(prefixes: Prefixes, *texts: Sequence[int]) -> None:
    """Serve requests for one token each."""
    verifier = LocalVerifier(make_world().target, prefixes=prefixes)
    for tokens in texts:
        list(engine_of(verifier).run([Request(0, tuple(tokens), 1)]))


def kept(prefixes: Prefixes) -> list[tuple[int, ...]]:
    """The least recently used first."""
    return [each.kept.tokens for each in sorted(prefixes._entries.values(), key=lambda each: each.used)]


A, B, C = (tuple(range(start, start + 20)) for start in (100, 200, 300))


def test_the_least_recently_used_is_dropped_first_and_the_bound_holds() -> None:
    prefixes = Prefixes(50)
    keep(prefixes, A, B)
    assert kept(prefixes) == [A, B]
    keep(prefixes, (*A[:18], 9))  # uses the first, and is kept beside it in its turn
    assert kept(prefixes) == [A, (*A[:18], 9)]
    assert prefixes.hits == 18
    keep(prefixes, C)
    assert kept(prefixes) == [(*A[:18], 9), C]
    assert prefixes.positions == 39
    prefixes.make_room(20)
    assert kept(prefixes) == [C]
    prefixes.make_room(20)
    assert prefixes.positions == 20
    prefixes.clear()
    assert prefixes.positions == 0
    keep(prefixes, A)
    assert kept(prefixes) == [A]


def test_of_two_of_which_one_begins_with_the_other_the_longer_is_kept() -> None:
    prefixes = Prefixes(1000)
    keep(prefixes, A, (*A, *B), C, (*A, *B[:7]))
    assert kept(prefixes) == [C, (*A, *B)]
    assert prefixes.hits == 20 + 26


def test_what_is_longer_than_all_that_may_be_kept_is_cut_and_what_is_too_short_is_not_kept() -> None:
    prefixes = Prefixes(30)
    keep(prefixes, (*A, *B), C[: LEAST - 1])
    assert kept(prefixes) == [(*A, *B[:10])]
    ((_, only),) = prefixes._known()
    assert only.cache.digest() == fresh(make_world().target, only.tokens).digest()
    keep(prefixes, (*A, *B))
    assert prefixes.hits == 30
    none = Prefixes(0)
    keep(none, A, A)
    assert (none.positions, none.hits, none.queries) == (0, 0, 40)
    keep(prefixes, C[: LEAST + 1])
    assert kept(prefixes) == [C[: LEAST + 1]]


def test_fewer_tokens_than_are_worth_a_copy_are_no_prefix() -> None:
    for common in (LEAST - 1, LEAST):
        prefixes = Prefixes(1000)
        keep(prefixes, A, (*A[:common], *B))
        assert prefixes.hits == (common if common == LEAST else 0)


def test_long_texts_are_compared_to_the_token() -> None:
    long = tuple(range(100, 500))  # longer than a block of them
    for common in (255, 256, 257, 399):
        prefixes = Prefixes(2000)
        keep(prefixes, long, (*long[:common], 5, *long[common + 1 :]))
        assert prefixes.hits == common


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
