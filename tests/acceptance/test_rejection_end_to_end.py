"""The rejection rule through verifier, drafters and engine: what comes out has the distribution of the target alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.decoder.weights import assemble
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.tree import TreeDrafter
from foretoken.loop.engine import Engine
from foretoken.protocol.roles import Drafter
from foretoken.protocol.telemetry import RoundRecord
from foretoken.protocol.types import Budget, Distribution, Request, SamplingParams
from foretoken.sampling.sampler import DRAFT_NOISE, Sampler
from foretoken.verification.local import LocalVerifier
from tests.chance import FALSE_ALARM, assert_drawn_from, chi_square_tail
from tests.oracles import sampled_distribution
from tests.tiny import random_tensors, tiny_config

LENGTH = 4  # the prompt's token, then a round that may accept two and gain a third, or rounds that gain less
PROMPT = (8, 12, 3)
PARAMS = SamplingParams(temperature=1.0, top_k=2)
SEEDS, TOGETHER = 600, 100
VOCABULARY = 31


def decoder(noise: float) -> Decoder:
    """As small as a decoder can be: where passes run in PyTorch, a row costs a millisecond a layer."""
    config = tiny_config(vocab_size=VOCABULARY, num_hidden_layers=1, hidden_size=16, intermediate_size=16)
    tensors, other = random_tensors(config, 1), random_tensors(config, 2)
    for name, tensor in tensors.items():
        tensor.add_(noise * other[name])
    return Decoder(config, assemble(tensors, config), threads=1)


TARGET, POOR = decoder(0.0), decoder(0.2)


class Liar(Sampler):
    """Says that it drew from other probabilities than it did."""

    def probabilities(self, logits: torch.Tensor) -> Distribution | None:
        probs = super().probabilities(logits)
        assert probs is not None
        swapped: Distribution = np.where(probs > 0.0, 1.0 - probs, 0.0)  # of two tokens
        return swapped


BUDGETS = {
    ModelDrafter: Budget(2, 2),
    PublishedFractalDrafter: Budget(5, 5),
    TreeDrafter: Budget(5, 2, 2),  # so that the second child has one child less than the first
}


def model_chain(sampler: type[Sampler] = Sampler) -> Drafter:
    dice = partial(sampler, stream=DRAFT_NOISE)
    return ModelDrafter(POOR, dice, name="m", vocab_size=VOCABULARY, independent=True)


def hesitant_chain() -> Drafter:
    """It drafts no further behind a token that it drew and finds unlikely."""
    noise = partial(Sampler, stream=DRAFT_NOISE)
    return ModelDrafter(POOR, noise, name="h", vocab_size=VOCABULARY, independent=True, confidence=0.2)


def fractal() -> Drafter:
    """Its guesses throw the dice that its draft throws, which must not show."""
    return PublishedFractalDrafter(
        POOR,
        partial(Sampler, stream=DRAFT_NOISE),
        name="f",
        vocab_size=VOCABULARY,
        target=TARGET,
        layers=(0,),
        window=2,
        independent=True,
        views=Caches(),
    )


def full_tree() -> Drafter:
    return TreeDrafter(
        POOR,
        partial(Sampler, stream=DRAFT_NOISE),
        name="t",
        vocab_size=VOCABULARY,
        shape="full",
        sharpness=1.0,
        independent=True,
    )


def texts(drafter: Drafter) -> tuple[Counter[tuple[int, ...]], Counter[str]]:
    """How often each text came out, with each seed once, and what happened to the drafts. Sequences share passes."""
    counts: Counter[tuple[int, ...]] = Counter()
    events: Counter[str] = Counter()

    def record(of: RoundRecord) -> None:
        for sequence, drafted in of.drafted.items():
            accepted = of.accepted[sequence]
            events["accepted"] += accepted
            events["drafted one"] += drafted == 1
            events["accepted to the end"] += accepted == 2
            events["rejected at once"] += bool(drafted) and not accepted
            events["rejected later"] += 0 < accepted < drafted

    engine = Engine(
        LocalVerifier(TARGET, getattr(drafter, "views", None), samplers=Sampler, rule="rejection"),
        drafter,
        budgets=[BUDGETS[type(drafter)]],
        recorder=record,
    )
    for first in range(0, SEEDS, TOGETHER):
        said: dict[int, tuple[int, ...]] = dict.fromkeys(range(first, first + TOGETHER), ())
        sampling = {seed: SamplingParams(PARAMS.temperature, PARAMS.top_k, seed=seed) for seed in said}
        requests = [Request(seed, PROMPT, LENGTH, sampling=sampling[seed]) for seed in said]
        for verdicts in engine.run(requests):
            for verdict in verdicts:
                said[verdict.sequence] += verdict.tokens
        counts.update(said.values())
    return counts, events


@pytest.fixture(scope="module")
def truth() -> dict[tuple[int, ...], float]:
    """The probability of each text: from the target's own logits after every prefix, and the plain definition."""
    total: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for said, probability in total.items():
            logits = TARGET.head(TARGET.forward(chain(TARGET.new_cache(), [*PROMPT, *said])))[-1]
            probs = sampled_distribution(logits.tolist(), PARAMS)
            longer.update({(*said, int(token)): probability * float(probs[token]) for token in probs.nonzero()[0]})
        total = longer
    assert len(total) == 2**LENGTH
    assert max(total.values()) < 0.5
    return total


@pytest.mark.parametrize("make", [model_chain, hesitant_chain, full_tree, fractal])
def test_the_text_has_the_targets_distribution(
    make: Callable[[], Drafter], truth: dict[tuple[int, ...], float]
) -> None:
    counts, events = texts(make())
    assert_drawn_from(counts, truth)
    rejected = "rejected later" if make is fractal else "rejected at once"  # its first token is the model's
    assert min(events["accepted"], events["accepted to the end"], events[rejected]) > 20, events
    assert make is not hesitant_chain or events["drafted one"] > SEEDS / 2, events


def test_a_draft_that_lies_about_its_probabilities_is_seen(truth: dict[tuple[int, ...], float]) -> None:
    """That these tests can fail."""
    counts, _ = texts(model_chain(Liar))
    assert chi_square_tail(counts, truth) < FALSE_ALARM
