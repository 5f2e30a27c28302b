"""Paper drafters: what later methods will ask of the types, in a few lines each, run through the real engine.

None is meant to be fast. Each is here because some method needs the thing that it does: see the docstrings.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from foretoken.acceptance.walk import walk
from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.views import Views
from foretoken.protocol.roles import Drafter, Verifier
from foretoken.protocol.telemetry import Work
from foretoken.protocol.types import Draft, Needs, PromptChunk, Request, Turn, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler

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
        right = right[: self.lengths[turn.sequence % len(self.lengths)]]
        spoiled = turn.round % 4
        if right and spoiled in (1, 2):
            at = min(spoiled, len(right) - 1)
            right[at] = (right[at] + 1) % 100
        return [] if spoiled == 0 and turn.round % 8 == 0 else right


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


class _Extract:
    """Keys and values of some layers, as they are."""

    def __init__(self, layers: range) -> None:
        self.layers = layers
        self.name = f"keys and values of layers {layers.start} to {layers.stop}"

    def __call__(self, cache: Cache, start: int, stop: int) -> dict[str, torch.Tensor]:
        read = [cache.read(layer) for layer in self.layers]
        return {
            "keys": torch.stack([keys[start:stop] for keys, _ in read], dim=1),
            "values": torch.stack([values[start:stop] for _, values in read], dim=1),
        }


class KeysValues(Fake):
    """Asks for keys and values of all layers, keeps a replica of the target's cache from them, and drafts on it with
    a poor copy. The replica is all that it knows of the cache, as it would be at the far end of a wire."""

    name = "keys-values"

    def __init__(self, model: Decoder, shape: Shape = "chain", layers: range | None = None) -> None:
        super().__init__(shape)
        self.model = model
        self.layers = range(model.config.num_layers) if layers is None else layers
        self.extractors = [_Extract(self.layers)]
        self.needs = Needs(extractors=tuple(each.name for each in self.extractors))
        self.replicas: dict[int, Cache] = {}

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        super().observe(verdicts)
        for verdict in verdicts:
            features = verdict.features
            assert features is not None
            replica = self.replicas.setdefault(verdict.sequence, self.model.new_cache(self.layers))
            assert features.start == replica.length, "features continue where the last ones ended"
            keys, values = features.tensors["keys"], features.tensors["values"]
            rows = chain(replica, [0] * len(keys))
            for at, layer in enumerate(self.layers):
                replica.write(layer, rows.segments[0].slots, keys[:, at], values[:, at], rows.writer)
            replica.commit(range(len(rows)), rows.writer)

    def guess(self, turn: Turn) -> list[int]:
        return greedy(self.model, self.replicas[turn.sequence].view(), self.texts[turn.sequence][-1], turn.depth)

    def end(self, sequence: int) -> None:
        super().end(sequence)
        self.replicas.pop(sequence, None)


class LastLayer(KeysValues):
    """Asks for the last layer's keys and values and runs the target's last layer on them (Mixture of Attentions'
    target layer inference): its cache covers that one layer."""

    name = "last-layer"

    def __init__(self, target: Decoder, shape: Shape = "chain", samplers: MakeSampler = Sampler) -> None:
        last = target.config.num_layers - 1
        super().__init__(target, shape, range(last, last + 1))
        self.make_sampler = samplers
        self.samplers: dict[int, Sampler] = {}
        self.needs = Needs(hidden=(target.config.num_layers,), extractors=self.needs.extractors)

    def observe(self, verdicts: Sequence[Verdict]) -> None:
        super().observe(verdicts)
        for verdict in verdicts:
            assert verdict.features is not None
            hidden = verdict.features.tensors[f"hidden.{self.layers.stop}"]
            assert len(hidden) == len(verdict.features.tensors["keys"]), "one hidden state a committed row"
            if (
                verdict.tokens and verdict.finish_reason is None
            ):  # the last row's hidden state is what the bonus token came from
                sampler = self.samplers[verdict.sequence]
                sampler.advance(verdict.tokens[:-1])
                assert sampler.choose(self.model.head(hidden[-1:])[0]) == verdict.tokens[-1]
                sampler.advance(verdict.tokens[-1:])

    def begin(self, requests: Sequence[Request]) -> None:
        super().begin(requests)
        self.samplers.update((request.sequence, self.make_sampler(request)) for request in requests)

    def end(self, sequence: int) -> None:
        super().end(sequence)
        self.samplers.pop(sequence, None)

    def guess(self, turn: Turn) -> list[int]:
        view, token = self.replicas[turn.sequence].view(), self.texts[turn.sequence][-1]
        guess: list[int] = []
        while len(guess) < turn.depth:
            rows = chain(view, [token])
            hidden = self.model.layers(self.model.embed([token]), rows, self.layers.start, self.layers.stop)
            token = int(self.model.head(hidden)[0].argmax())
            guess.append(token)
        return guess


class Halves(Fake):
    """Runs the target's layers in two halves on a view and writes in between (FractalLLM): what the lower half
    suggests for a slot replaces its token, its hidden state and its lower keys and values, then the upper half runs."""

    name = "halves"

    def __init__(self, target: Decoder, caches: Caches, shape: Shape = "chain") -> None:
        super().__init__(shape)
        self.target, self.caches = target, caches

    def guess(self, turn: Turn) -> list[int]:
        target, half = self.target, self.target.config.num_layers // 2
        view = self.caches.view(turn.sequence)
        slots = [self.texts[turn.sequence][-1]] * (turn.depth + 1)
        for at in range(turn.depth):  # refine slot by slot: what stands at one slot decides the next
            view.discard()
            rows = chain(view, slots)
            hidden = target.layers(target.embed(slots), rows, 0, half)
            slots[at + 1] = int(target.head(hidden[at : at + 1])[0].argmax())
        if not turn.depth:
            return []
        view.discard()
        rows = chain(view, slots)
        hidden = target.layers(target.embed(slots), rows, 0, half)
        keys, values = (tensor[view.length :] for tensor in view.read(half - 1))
        view.write(half - 1, rows.segments[0].slots, keys * 0.99, values, rows.writer)
        hidden[1:] = hidden[1:] * 0.99
        logits = target.head(target.layers(hidden, rows, half, target.config.num_layers))
        return [int(row.argmax()) for row in logits[: turn.depth]]


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
