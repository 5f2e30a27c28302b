"""What passes of a model and its copies cost by their rows, and what rounds come to that are made of such passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretoken.bench.tuning.trials import COPY, TARGET, Trace
from foretoken.decoder.decoder import Decoder
from foretoken.prices import measuring as prices
from foretoken.prices.measuring import ROWS
from foretoken.prices.price import PassPrice

FRACTAL, CHAIN, LOOKUP = "fractal", "chain", "lookup"  # kinds of drafts


@dataclass(frozen=True)
class Costs:
    """Of the model and of its copies by format, behind a text of `prefix` tokens. What costs seconds besides passes: a
    `round` of the engine, a `guess` of a fractal draft, a `draft` of a chain."""

    num_layers: int
    prefix: int
    target: PassPrice
    copies: Mapping[str, PassPrice]
    round: float = 0.0
    guess: float = 0.0
    draft: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        copies = {format: _to_json(price) for format, price in self.copies.items()}
        return {**vars(self), "target": _to_json(self.target), "copies": copies}

    def plain(self) -> float:
        """Tokens a second of plain decoding."""
        return 1 / (self.target.whole(1) + self.round)

    def speed(self, kind: str, format: str, trace: Trace) -> float:
        """Tokens a second of a draft of some kind whose copy is in a format."""
        seconds = self.drafting(kind, format, trace) + self._checking(trace)
        return trace.tokens / seconds if trace.rounds else 0.0

    def drafting(self, kind: str, format: str, trace: Trace) -> float:
        """Seconds of all drafts: of what fractal ones ran and chose; of a chain token by token. A lookup costs none."""
        if kind == LOOKUP:
            return 0.0
        copy = self.copies[format]
        if kind == CHAIN:
            return sum(copy.step * drafted + self.draft for drafted, _, _ in trace.rounds if drafted)
        decoders, seconds = {TARGET: self.target, COPY: copy}, self.guess * trace.guesses
        for ran in trace.ran:
            price = decoders[ran.decoder]
            seconds += ran.times * (price.part(ran.rows, ran.layers / self.num_layers) + price.head.of(ran.logits))
        return seconds

    def with_rest(self, plain: Trace, fractal: Trace, chain: Trace, format: str) -> Costs:
        """With what rounds took besides their passes, which is nothing yet: it is what Python does, and much where a
        model is small. Where plain rounds took less than the pass that they consist of, every pass is taken to cost
        less by as much: passes timed in turn find nothing of a small model in the processor's caches."""
        factor = min(1.0, plain.seconds / self._checking(plain)) if plain.rounds else 1.0
        copies = {name: price.times(factor) for name, price in self.copies.items()}
        made = replace(self, target=self.target.times(factor), copies=copies)
        made = replace(made, round=made._rest(LOOKUP, format, plain, len(plain.rounds)))
        drafts = sum(drafted > 0 for drafted, _, _ in chain.rounds)
        guess = made._rest(FRACTAL, format, fractal, fractal.guesses)
        return replace(made, guess=guess, draft=made._rest(CHAIN, format, chain, drafts))

    def _rest(self, kind: str, format: str, trace: Trace, count: int) -> float:
        """What is left of a trace's time for each of so many, when its passes are taken away."""
        known = self.drafting(kind, format, trace) + self._checking(trace)
        return max(0.0, (trace.seconds - known) / count) if count else 0.0

    def _checking(self, trace: Trace) -> float:
        return sum(self.target.whole(1 + drafted) + self.round for drafted, _, _ in trace.rounds)


def measure(target: Decoder, copies: Mapping[str, Decoder], *, prefix: int, most: int, rounds: int = 5) -> Costs:
    """Measure passes, all in turn. prefix: tokens of text before them; most: rows that a pass may have. What
    costs besides passes is left at 0."""
    rows = [count for count in ROWS if count < most] + [most]
    made = prices.measure({TARGET: target, **copies}, prefix=prefix, rows=rows, rounds=rounds)
    return Costs(target.config.num_layers, prefix, made.pop(TARGET), made)


def _to_json(price: PassPrice) -> dict[str, Any]:
    return {"layers": dict(price.layers.seconds), "head": dict(price.head.seconds), "step": price.step}
