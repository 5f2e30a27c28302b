"""A fractal draft under the rejection rule, enumerated: every way in which all dice may fall, its guesses' too."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.weights import assemble
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.protocol.types import Distribution, Request, SamplingParams, Turn
from foretoken.sampling.sampler import Sampler
from foretoken.verification.local import LocalVerifier
from tests.chance import Dice, every_run
from tests.oracles import sampled_distribution
from tests.tiny import needs_native, random_tensors, tiny_config
from tests.world import read

VOCABULARY, STEPS = 13, 4
PROMPT = (8, 12, 3, 8, 12, 3)
PARAMS = SamplingParams(temperature=1.0, top_k=2)
Text = tuple[int, ...]


def decoder(noise: float) -> Decoder:
    config = tiny_config(vocab_size=VOCABULARY, num_hidden_layers=2, hidden_size=16, intermediate_size=16)
    tensors, other = random_tensors(config, 1), random_tensors(config, 2)
    for name, tensor in tensors.items():
        tensor.add_(noise * other[name])
    return Decoder(config, assemble(tensors, config), threads=1)


TARGET, POOR = decoder(0.0), decoder(0.3)


class Throwing(Sampler):
    """Its choices are those of enumerated dice."""

    def __init__(self, request: Request, dice: Dice) -> None:
        super().__init__(request)
        self._enumerated = dice

    def _rank(self, logits: torch.Tensor, count: int) -> tuple[list[int], list[float]] | None:
        probs = self.probabilities(logits)
        assert probs is not None
        return [self._enumerated.throw(probs.tolist())], [0.0]

    def coin(self, which: int, probability: float) -> bool:
        return self._enumerated.toss(probability)

    def pick(self, probs: object) -> int:
        return self._enumerated.throw(probs.tolist())  # type: ignore[attr-defined]


class Liar(PublishedFractalDrafter):
    """Says that its tokens were drawn from other probabilities than they were."""

    def drawn_from(self, sampler: Sampler, logits: torch.Tensor) -> Distribution | None:
        probs = super().drawn_from(sampler, logits)
        assert probs is not None
        swapped: Distribution = np.where(probs > 0.0, 1.0 - probs, 0.0)  # of two tokens
        return swapped


def distribution(
    layers: tuple[int, ...], slots: str, events: Counter[str], drafters: type[FractalDrafter] = PublishedFractalDrafter
) -> dict[Text, float]:
    """Of all texts of four tokens after the prompt, by rounds of the drafter and the rule: exactly."""

    def one_round(dice: Dice, text: Text, left: int) -> Text:
        def samplers(request: Request) -> Sampler:
            return Throwing(request, dice)

        caches = Caches()
        verifier = LocalVerifier(TARGET, caches, samplers=samplers, rule="rejection")
        drafter = drafters(
            POOR,
            samplers,
            name="fractal",
            vocab_size=VOCABULARY,
            target=TARGET,
            layers=layers,
            window=1,
            slots=slots,
            independent=True,
            views=caches,
        )
        request = Request(0, text, left, sampling=PARAMS)
        drafter.begin([request])
        (begun,) = read(verifier, [request])
        if left == 1:
            return begun.tokens
        drafter.observe([begun])
        (draft,) = drafter.propose([Turn(0, 1, len(text) + 1, rows=left - 1, depth=left - 1)])
        (verdict,) = verifier.result(verifier.submit([draft]))
        events["drafted"] += len(draft.tokens)
        events["accepted"] += len(verdict.accepted)
        events["rejected"] += len(draft.tokens) > len(verdict.accepted)
        return (*begun.tokens, *verdict.tokens)[:left]

    @cache
    def said_after(text: Text, left: int) -> dict[Text, float]:
        total: dict[Text, float] = {}
        for gained, p in every_run(lambda dice: one_round(dice, text, left)).items():
            rest = said_after((*text, *gained), left - len(gained)) if left > len(gained) else {(): 1.0}
            for more, q in rest.items():
                total[gained + more] = total.get(gained + more, 0.0) + p * q
        return total

    return said_after(PROMPT, STEPS)


@cache
def truth() -> dict[Text, float]:
    total: dict[Text, float] = {(): 1.0}
    for _ in range(STEPS):
        longer = {}
        for said, probability in total.items():
            logits = TARGET.head(TARGET.forward(chain(TARGET.new_cache(), [*PROMPT, *said])))[-1]
            probs = sampled_distribution(logits.tolist(), PARAMS)
            longer.update({(*said, int(token)): probability * float(probs[token]) for token in probs.nonzero()[0]})
        total = longer
    assert max(total.values()) < 0.6
    return total


def distance(one: dict[Text, float]) -> float:
    return max(abs(one.get(text, 0.0) - truth().get(text, 0.0)) for text in one.keys() | truth().keys())


@needs_native
@pytest.mark.parametrize("slots", ["fixed", "lookup"])
@pytest.mark.parametrize("layers", [(0,), (1,), (0, 1)], ids=str)
def test_a_fractal_draft_keeps_the_distribution(layers: tuple[int, ...], slots: str) -> None:
    events: Counter[str] = Counter()
    assert distance(distribution(layers, slots, events)) < 1e-12
    assert min(events["accepted"], events["rejected"]) > 10, events


@needs_native
def test_what_a_drafter_that_lies_changes_is_seen() -> None:
    """That this can fail."""
    assert distance(distribution((0, 1), "fixed", Counter(), Liar)) > 1e-3
