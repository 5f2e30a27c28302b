"""What drafts do on prompts: how much is drafted and accepted, in passes of how many rows; and what that costs.

The cost of passes is measured once, by their rows. The cost of rounds, which consist of such passes, is predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from foretoken.bench.decode import ask
from foretoken.bench.generations import Generation
from foretoken.bench.suites import Prompt
from foretoken.bench.target import Target
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.outputs import Outputs
from foretoken.decoder.rows import Rows
from foretoken.prices import measuring as prices
from foretoken.prices.price import PassPrice
from foretoken.results.completion import Completion
from foretoken.settings.generate import GenerateSettings

FRACTAL, CHAIN, LOOKUP = "fractal", "chain", "lookup"  # kinds of drafts
TARGET, COPY = "target", "copy"  # which decoder runs a part of a pass


class Ran(NamedTuple):
    """A part of a pass, by TARGET or COPY: the number of rows, of layers that they go through, and of rows with logits;
    and how many times it ran."""

    decoder: str
    rows: int
    layers: int
    logits: int
    times: int


@dataclass(frozen=True)
class Trace:
    """What a draft did: drafted, accepted and new tokens of each check; and what fractal drafts ran. Only the `seconds`
    of all rounds change from run to run.

    differing: tokens that differ from plain decoding's.
    """

    rounds: tuple[tuple[int, ...], ...]
    ran: tuple[Ran, ...] = ()
    differing: int = 0
    seconds: float = 0.0

    @property
    def guesses(self) -> int:
        """How often fractal drafts chose tokens."""
        return sum(each.times for each in self.ran if each.logits)

    @property
    def tokens(self) -> int:
        """Tokens that the checks gained."""
        return sum(new for _, _, new in self.rounds)

    def to_json(self) -> dict[str, Any]:
        """The trace as a record has it, where `accepted` is the mean number of draft tokens that a check accepted."""
        counts = {"tokens": self.tokens, "differing": self.differing, "rounds": self.rounds, "ran": self.ran}
        return {"accepted": accepted_a_round(self.rounds), **counts}


def accepted_a_round(rounds: Sequence[Sequence[int]]) -> float:
    """The mean number of draft tokens that a check accepted."""
    return sum(accepted for _, accepted, _ in rounds) / max(1, len(rounds))


@dataclass
class Trials:
    """Tries drafts of a model on prompts. tell: called with what comes next."""

    target: Target
    prompts: Sequence[Prompt]
    new_tokens: int
    tell: Callable[[str], None] = lambda what: None
    promise: str = "exact"  # the weakest promise of all texts

    def how(self, number: int) -> GenerateSettings:
        """A prompt's settings: greedy decoding, with what each round did."""
        return GenerateSettings(max_new_tokens=self.new_tokens, seed=number, keep_rounds=True)

    @cached_property
    def truth(self) -> list[list[Completion]]:
        """The texts of plain decoding for each prompt; decoded once."""
        texts = []
        for number, prompt in enumerate(self.prompts):
            self.tell(f"plain decoding, prompt {number + 1} of {len(self.prompts)}; then the costs of passes")
            texts.append(ask(self.target.plain, prompt, self.how(number)))
        return texts

    def trace(self, draft: str, count: int | None = None) -> Trace:
        """What a draft does on the prompts, or on the first `count` of them."""
        model: Any = self.target.model(draft)
        ran: Counter[tuple[str, int, int, int]] = Counter()
        if draft.startswith("fractal"):
            model.drafter.target = _Noted(model.drafter.target, TARGET, ran)
            model.drafter.model = _Noted(model.drafter.model, COPY, ran)
        made = [
            Generation.of(ask(model, prompt, self.how(at)), self.truth[at], method=draft, prompt=prompt.id)
            for at, prompt in enumerate(self.prompts[:count])
        ]
        self.promise = min(self.promise, *(generation.promise for generation in made))
        return Trace(
            tuple(each for generation in made for each in generation.rounds),
            tuple(Ran(*each, times) for each, times in sorted(ran.items())),
            sum(generation.differing for generation in made),
            sum(generation.decode_seconds for generation in made),
        )


@dataclass(frozen=True)
class Costs:
    """The costs of passes of the model and of its copies by format, behind a text of `prefix` tokens. Seconds besides
    passes: for each `round` of the engine, each `guess` of a fractal draft, each `draft` of a chain."""

    num_layers: int
    prefix: int
    target: PassPrice
    copies: Mapping[str, PassPrice]
    round: float = 0.0
    guess: float = 0.0
    draft: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The costs as a record has them."""
        copies = {format: _to_json(price) for format, price in self.copies.items()}
        return {**vars(self), "target": _to_json(self.target), "copies": copies}

    def plain(self) -> float:
        """Tokens per second of plain decoding."""
        return 1 / (self.target.whole(1) + self.round)

    def speed(self, kind: str, format: str, trace: Trace) -> float:
        """Tokens per second with a draft of some kind whose copy has a format."""
        seconds = self.drafting(kind, format, trace) + self._checking(trace)
        return trace.tokens / seconds if trace.rounds else 0.0

    def drafting(self, kind: str, format: str, trace: Trace) -> float:
        """Seconds of all drafts: what fractal ones ran and chose, or a chain's tokens one by one. A lookup is free."""
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
        """These costs with the time that rounds took besides their passes: what Python does, which is much for a small
        model. If plain rounds took less time than the passes that they consist of, every pass is taken to cost less by
        that factor: passes timed in turn find nothing of a small model in the processor's caches."""
        factor = min(1.0, plain.seconds / self._checking(plain)) if plain.rounds else 1.0
        copies = {name: price.times(factor) for name, price in self.copies.items()}
        made = replace(self, target=self.target.times(factor), copies=copies)
        made = replace(made, round=made._rest(LOOKUP, format, plain, len(plain.rounds)))
        drafts = sum(drafted > 0 for drafted, _, _ in chain.rounds)
        guess = made._rest(FRACTAL, format, fractal, fractal.guesses)
        return replace(made, guess=guess, draft=made._rest(CHAIN, format, chain, drafts))

    def _rest(self, kind: str, format: str, trace: Trace, count: int) -> float:
        """The part of a trace's time that its passes do not explain, divided by `count`."""
        known = self.drafting(kind, format, trace) + self._checking(trace)
        return max(0.0, (trace.seconds - known) / count) if count else 0.0

    def _checking(self, trace: Trace) -> float:
        return sum(self.target.whole(1 + drafted) + self.round for drafted, _, _ in trace.rounds)


def measure(target: Decoder, copies: Mapping[str, Decoder], *, prefix: int, most: int, rounds: int = 5) -> Costs:
    """Measure passes, all in turn. prefix: tokens of text before them. most: rows that a pass may have. The costs
    besides passes are left at 0."""
    rows = [count for count in prices.ROWS if count < most] + [most]
    made = prices.measure({TARGET: target, **copies}, prefix=prefix, rows=rows, rounds=rounds)
    return Costs(target.config.num_layers, prefix, made.pop(TARGET), made)


def _to_json(price: PassPrice) -> dict[str, Any]:
    return {"layers": dict(price.layers.seconds), "head": dict(price.head.seconds), "step": price.step}


class _Noted:
    """A decoder that notes what a drafter runs on it."""

    def __init__(self, decoder: Decoder, name: str, ran: Counter[tuple[str, int, int, int]]) -> None:
        self._decoder, self._name, self._ran = decoder, name, ran

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def layers(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, hi: int | None = None) -> torch.Tensor:
        hi = self._decoder.config.num_layers if hi is None else hi
        if hi > lo:
            self._ran[self._name, len(rows), hi - lo, 0] += 1
        return self._decoder.layers(hidden, rows, lo, hi)

    def finish(self, hidden: torch.Tensor, rows: Rows, lo: int = 0, *, first: int = 0) -> Outputs:
        self._ran[self._name, len(rows), self._decoder.config.num_layers - lo, len(rows) - first] += 1
        return self._decoder.finish(hidden, rows, lo, first=first)
