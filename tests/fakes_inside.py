"""Paper drafters that use what the target keeps: its caches, keys and values, hidden states and layers.

They stand for FractalLLM and Mixture of Attentions. See tests/fakes.py for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foretoken.decoder.cache import Cache
from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.protocol.types import Needs, Request, Turn, Verdict
from foretoken.sampling.sampler import MakeSampler, Sampler
from tests.fakes import Fake, Shape, greedy


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
