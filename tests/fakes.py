"""Paper drafters: what later methods will ask of the types, in a few lines each, run through the real engine.

None is meant to be fast. Each is here because some method needs the thing that it does: see the docstrings.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from foretoken.acceptance.walk import walk
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.views import Views
from foretoken.drafters.suffixes import SuffixArray
from foretoken.drafters.tree import TreeDrafter
from foretoken.protocol.roles import Drafter, Verifier
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, PromptChunk, Request, Turn, Verdict

Shape = str  # "chain" or "tree"


def without_views(inner: Drafter | None) -> Callable[[Views], Drafter] | None:
    """What a level is given that is sped up by a drafter which looks at nobody's caches, or by none."""
    return None if inner is None else lambda _: inner


class Fake:
    """Remembers each sequence's tokens; a subclass says which tokens to guess for a turn."""

    name = "fake"
    needs = Needs()

    def __init__(self, shape: Shape = "chain") -> None:
        self.shape = shape
        self.texts: dict[int, list[int]] = {}

    def begin(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.texts[request.sequence] = list(request.prompt)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return [self.draft(turn, self.guess(turn)) for turn in turns]

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        for verdict in verdicts:
            assert verdict.position == len(self.texts[verdict.sequence]), "a verdict continues what was seen before"
            self.texts[verdict.sequence].extend(verdict.tokens)

    def rewind(self, sequence: int, position: int) -> None:
        del self.texts[sequence][position:]

    def end(self, sequence: int) -> None:
        self.texts.pop(sequence, None)

    def forget(self, conversation: int) -> None:
        pass

    def guess(self, turn: Turn) -> list[int]:
        raise NotImplementedError

    def draft(self, turn: Turn, guess: Sequence[int]) -> Draft:
        """The guess as a chain, or as a tree in which every token has a wrong sibling before it, with a child."""
        if self.shape == "chain":
            return turn.chain(guess, self.name)
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in guess:
            decoy = len(tokens)
            tokens += [token + 1 if token else 2, token, token]
            parents += [at, decoy, at]
            at = decoy + 2
        return turn.tree(tokens, parents, self.name)


class Scripted(Fake):
    """Knows the continuation and spoils it by a script: right for a while, wrong, wholly right, nothing, ..."""

    name = "scripted"

    def __init__(
        self, truth: Mapping[int, Sequence[int]], shape: Shape = "chain", lengths: Sequence[int] = (99,)
    ) -> None:
        super().__init__(shape)
        self.truth = truth  # by sequence: prompt and plain continuation
        self.lengths = lengths  # by sequence, again and again: how much it guesses at most

    def guess(self, turn: Turn) -> list[int]:
        right = list(self.truth[turn.sequence][turn.position :][: turn.depth])
        return self.spoiled(turn, right[: self.lengths[turn.sequence % len(self.lengths)]])

    @staticmethod
    def spoiled(turn: Turn, right: list[int]) -> list[int]:
        """The script of what is wrong."""
        spoiled = turn.round % 4
        if right and spoiled in (1, 2):
            at = min(spoiled, len(right) - 1)
            right[at] = (right[at] + 1) % 100
        return [] if spoiled == 0 and turn.round % 8 == 0 else right


class Known:
    """Files whose index is there from the beginning, or never is. waited: how often somebody waited for it."""

    def __init__(self, texts: Sequence[Sequence[int]] | None) -> None:
        self.index = None if texts is None else SuffixArray(texts)
        self.waited = 0

    def wait(self) -> None:
        self.waited += 1


class RandomTrees(Fake):
    """Draws a tree of any form in which some branch is right for a while, and repeats a child now and then."""

    name = "random-trees"

    def __init__(self, truth: Mapping[int, Sequence[int]], seed: int) -> None:
        super().__init__("tree")
        self.truth = truth
        self.dice = random.Random(seed)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return [self._tree(turn) for turn in turns]

    def _tree(self, turn: Turn) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []
        for i in range(self.dice.randint(0, turn.rows)):
            parent = self.dice.randint(max(-1, i - 4), i - 1) if i else -1
            depth = 0 if parent < 0 else depths[parent] + 1
            at = turn.position + depth
            right = self.truth[turn.sequence][at] if at < len(self.truth[turn.sequence]) else 0
            tokens.append(right if self.dice.random() < 0.7 else self.dice.randrange(100))
            parents.append(parent)
            depths.append(depth)
        return turn.tree(tokens, parents, self.name)


class Silent(Fake):
    """Proposes nothing, ever."""

    name = "silent"

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        return []


class Liar(Scripted):
    """Half of what it says is wrong, and all of what it says about it is: certainty, origins, work, sequences."""

    name = "liar"

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        drafts = []
        for turn in turns:
            honest = self.draft(turn, self.guess(turn))
            lie = replace(
                honest,
                tokens=tuple(-1 if turn.round % 5 == 4 else token for token in honest.tokens),
                origins=("target",) * len(honest),
                draft_probs={node: np.full(3, 1.0) for node in range(-1, len(honest))},
                work=(Work("nobody", -1, -1.0, -1.0, 10**9, -5, 10**9),),
            )
            elsewhere = replace(lie, sequence=turn.sequence + 1000)
            drafts += [elsewhere, lie, replace(lie, tokens=tuple(9 for _ in lie.tokens))]
        return drafts


class OverBudget(Scripted):
    """Ignores its budget: longer and wider than it may be, and on past the end of everything."""

    name = "over-budget"

    def guess(self, turn: Turn) -> list[int]:
        bigger = replace(turn, depth=turn.depth + 7)
        guess = super().guess(bigger)
        return [*guess, *[5] * (turn.rows + 13 - len(guess))]


class Ladder(Fake):
    """Two levels on stacked views (ML-SpecQD): a poor copy drafts on a view of the target's cache, and is itself
    sped up by a poorer copy on a view of that view, whose guesses it checks and commits inside its own view."""

    name = "ladder"

    def __init__(self, upper: Decoder, lower: Decoder, caches: Caches, shape: Shape = "chain") -> None:
        super().__init__(shape)
        self.upper, self.lower, self.caches = upper, lower, caches
        self.inner_accepted = 0

    def guess(self, turn: Turn) -> list[int]:
        view = self.caches.view(turn.sequence)
        before = view.base
        last = self.texts[turn.sequence][-1]
        guess: list[int] = []
        while len(guess) < turn.depth:
            inner = greedy(self.lower, view.view(), last, 2)
            rows = chain(view, [last, *inner])
            logits = self.upper.head(self.upper.forward(rows))
            accepted, bonus = walk(inner, range(-1, len(inner) - 1), lambda i, x=logits: int(x[i + 1].argmax()))
            view.commit(range(1 + len(accepted)), rows.writer)
            self.inner_accepted += len(accepted)
            guess += [*(inner[i] for i in accepted), bonus]
            last = bonus
        assert view.base == before, "a view begins where it began"
        return guess[: turn.depth]


class Delayed:
    """A drafter behind a channel: drafts are sent as bytes and come rounds later, or twice. Late ones must be told by
    what they carry; those that come in time must still be right."""

    needs = Needs()

    def __init__(self, inner: Fake, delays: Sequence[int] = (0, 1, 0, 0, 2)) -> None:
        self.inner, self.delays = inner, delays
        self.name = "delayed"
        self.channel: list[tuple[int, bytes]] = []
        self.rounds = 0

    def begin(self, requests: Sequence[Request]) -> None:
        self.inner.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        self.rounds += 1
        arrives = self.rounds + self.delays[self.rounds % len(self.delays)]
        for draft in self.inner.propose(turns):
            self.channel += [(arrives, pickle.dumps(draft)), (arrives + 1, pickle.dumps(draft))]
        come = [pickle.loads(data) for at, data in self.channel if at <= self.rounds]
        self.channel = [(at, data) for at, data in self.channel if at > self.rounds]
        return come

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        self.inner.observe([pickle.loads(pickle.dumps(verdict)) for verdict in verdicts])

    def rewind(self, sequence: int, position: int) -> None:
        self.inner.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        self.inner.end(sequence)

    def forget(self, conversation: int) -> None:
        self.inner.forget(conversation)


class GoesOn:
    """A drafter that has made some more steps by the time a verdict comes, as while the target waits for a disk.
    `went_on`: how many verdicts led to a node that had been expanded. `passes`: how many were made for proposals."""

    needs = Needs()

    def __init__(self, inner: TreeDrafter, steps: int = 6) -> None:
        self.inner, self.steps, self.name = inner, steps, inner.name
        self.went_on = self.passes = 0

    def begin(self, requests: Sequence[Request]) -> None:
        self.inner.begin(requests)

    def propose(self, turns: Sequence[Turn]) -> list[Draft]:
        began = time.perf_counter()
        drafts = self.inner.propose(turns)
        self.passes += len({work.began for draft in drafts for work in draft.work if work.began >= began})
        return drafts

    def observe(self, verdicts: Sequence[Verdict]) -> Sequence[Work]:
        left = iter(range(self.steps))
        self.inner.go_on([verdict.sequence for verdict in verdicts], lambda: next(left, None) is not None)
        found = self.inner.observe(verdicts)
        self.went_on += len(self.inner._reached)
        return found

    def rewind(self, sequence: int, position: int) -> None:
        self.inner.rewind(sequence, position)

    def end(self, sequence: int) -> None:
        self.inner.end(sequence)

    def forget(self, conversation: int) -> None:
        self.inner.forget(conversation)


class FarVerifier:
    """A verifier at the far end of a wire: everything crosses as bytes, and results wait until they are asked for."""

    def __init__(self, near: Verifier) -> None:
        self._near = near
        self.context_length, self.vocab_size = near.context_length, near.vocab_size
        self._waiting: dict[int, bytes] = {}

    def admit(self, request: Request) -> None:
        (request,) = self._wire([request])
        self._near.admit(request)

    def submit(self, drafts: Sequence[Draft], chunks: Sequence[PromptChunk] = ()) -> int:
        ticket = len(self._waiting)
        self._waiting[ticket] = pickle.dumps((list(drafts), list(chunks)))
        return ticket

    def result(self, ticket: int) -> list[Verdict]:
        drafts, chunks = pickle.loads(self._waiting[ticket])
        return self._wire(self._near.result(self._near.submit(drafts, chunks)))

    def end(self, sequence: int) -> None:
        self._near.end(sequence)

    def forget(self, conversation: int) -> None:
        self._near.forget(conversation)

    @staticmethod
    def _wire(value: list) -> list:
        return pickle.loads(pickle.dumps(value))


def greedy(model: Decoder, cache: Cache, last: int, count: int) -> list[int]:
    """`count` greedy tokens after `last`, in the scratch of a cache."""
    tokens: list[int] = []
    for _ in range(count):
        rows = chain(cache, [last])
        last = int(model.head(model.forward(rows))[0].argmax())
        tokens.append(last)
    return tokens
