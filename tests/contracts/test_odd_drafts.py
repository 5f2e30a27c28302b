"""Drafts that fit the target badly: other vocabularies and contexts, prompts with tokens that they lack, NaN among
their weights, ladders and trees of all forms. What comes out is what plain decoding gives, and nothing is raised."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache

import pytest
import torch

from foretoken.decoder.caches import Caches
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.views import Views
from foretoken.decoder.weights import assemble
from foretoken.drafters.chain import ModelDrafter
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.nothing import NothingDrafter
from foretoken.drafters.slots import SLOTS
from foretoken.drafters.tree import TreeDrafter
from foretoken.formats import format_of
from foretoken.kernels import native
from foretoken.protocol.roles import Drafter
from foretoken.protocol.types import Budget, Request, SamplingParams, Turn, Verdict
from foretoken.sampling.sampler import Sampler
from foretoken.trees.grow import SHAPES
from tests.fakes import without_views
from tests.tiny import random_tensors, tiny_config
from tests.world import Run, chain_of

TOKENS = 97
_LAYERS = 2


@cache
def target() -> Decoder:
    config = tiny_config(num_hidden_layers=_LAYERS, max_position_embeddings=64)
    return Decoder(config, assemble(random_tensors(config, 1), config), threads=1)


@cache
def draft_model(noise: float, vocabulary: int, context: int, window: int | None, poisoned: int | None) -> Decoder:
    """A copy of the target with noise in it, as far as it has the same tokens."""
    windowed = {"model_type": "mistral", "sliding_window": window} if window else {}
    config = tiny_config(num_hidden_layers=_LAYERS, max_position_embeddings=context, vocab_size=vocabulary, **windowed)
    right = random_tensors(tiny_config(num_hidden_layers=_LAYERS), 1)
    tensors, dice = random_tensors(config, 2), torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        same = right[name][: len(tensor)]
        tensor[: len(same)] = same + noise * same.std() * torch.randn(same.shape, generator=dice)
    if poisoned is not None:
        tensors["model.embed_tokens.weight"][poisoned] = torch.nan
    return Decoder(config, assemble(tensors, config), threads=1)


Leveled = tuple[Drafter, list[Budget]]  # with the budgets of its levels


def some_tree(dice: random.Random, model: Decoder, name: str, views: Caches | None) -> Leveled:
    budget = Budget(dice.randint(1, 20), dice.randint(1, 6), dice.randint(1, 4))
    tree = TreeDrafter(
        model,
        Sampler,
        name=name,
        vocab_size=TOKENS,
        shape=dice.choice(SHAPES),
        sharpness=dice.choice([0.1, 1.0]),
        views=views,
    )
    return tree, [budget]


def some_chain(dice: random.Random) -> Budget:
    count = dice.randint(1, 9)
    return Budget(count, count)


def some_drafter(dice: random.Random, poison: bool, depth: int = 0) -> Leveled:
    """A ladder of up to three levels."""
    if depth and dice.random() < 0.3:
        return LookupDrafter(1), [some_chain(dice)]
    model = draft_model(
        dice.choice([0.0, 0.1, 0.3]),
        dice.choice([60, TOKENS, TOKENS, 130]),
        dice.choice([8, 20, 40, 64]),
        dice.choice([None, None, 2]),
        dice.randrange(60) if poison else None,
    )
    if dice.random() < 0.4:
        return some_tree(dice, model, f"tree {depth}", None)
    inner, below = some_drafter(dice, poison, depth + 1) if depth < 2 and dice.random() < 0.7 else (None, [])
    drafter = ModelDrafter(model, Sampler, name=f"model {depth}", vocab_size=TOKENS, below=without_views(inner))
    return drafter, [some_chain(dice), *below]


def some_requests(dice: random.Random) -> list[Request]:
    requests = []
    for sequence in range(dice.randint(1, 3)):
        known = TOKENS if dice.random() < 0.3 else 60
        sampling = SamplingParams(
            temperature=dice.choice([0.0, 0.0, 0.7, 1.5]),
            top_k=dice.choice([0, 0, 5]),
            repetition_penalty=dice.choice([1.0, 1.0, 1.3]),
            seed=dice.randrange(99),
        )
        prompt = tuple(dice.randrange(known) for _ in range(dice.randint(1, 30)))
        ends = frozenset(dice.sample(range(TOKENS), dice.choice([0, 1, 3])))
        requests.append(Request(sequence, prompt, dice.randint(1, 40), ends, sampling=sampling, completion=sequence))
    return requests


# in PyTorch each takes several times as long
SEEDS, LADDERS = (120, 150) if native.module() is not None else (40, 50)


def expect_plain(
    seed: int, dice: random.Random, requests: list[Request], leveled: Leveled, caches: Caches
) -> Counter[str]:
    """What plain decoding generates, and leaves in the caches; returns what happened. caches: the target's."""
    plain = Run(target(), NothingDrafter(), requests, prefill_chunk=5)
    (drafter, budgets), ahead = leveled, dice.choice([0, 0, 0, 1, 2])
    run = Run(
        target(), drafter, requests, budgets=budgets, caches=caches, prefill_chunk=dice.choice([5, 64]), ahead=ahead
    )
    events: Counter[str] = Counter()
    for request in requests:
        mine, right = run.sequences[request.sequence], plain.sequences[request.sequence]
        assert (mine.tokens, mine.finish_reason) == (right.tokens, right.finish_reason), f"case {seed}"
        length = len(request.prompt) + len(mine.tokens) - 1
        one, other = run.final_caches[request.sequence], plain.final_caches[request.sequence]
        assert one.digest_at(length) == other.digest_at(length), f"case {seed}"
        events.update(f"from level {origin[-1]}" if origin[-1].isdigit() else origin for origin in mine.origins)
    events["drafted"] = sum(sum(record.drafted.values()) for record in run.records)
    events["accepted"] = sum(sum(record.accepted.values()) for record in run.records)
    return events


@pytest.mark.parametrize("poison", [False, True], ids=["sound", "with NaN"])
def test_drafts_that_fit_badly_change_nothing(poison: bool) -> None:
    events: Counter[str] = Counter()
    for seed in range(SEEDS):
        dice = random.Random(seed)
        requests, leveled = some_requests(dice), some_drafter(dice, poison)
        events += expect_plain(seed, dice, requests, leveled, Caches())
    assert events["accepted"] > 100, events
    assert events["drafted"] > events["accepted"] + 100, events


@cache
def low_bit_copy(label: str, inputs: str) -> Decoder:
    weights = quantised(target().weights, target().config, format_of(label), inputs=inputs)
    return Decoder(target().config, weights, threads=1)


def some_copies(dice: random.Random, views: Views | None, depth: int = 0) -> Leveled:
    """A ladder of up to four copies of the target, each on views of what the one above checks with, or on its own."""
    if depth and dice.random() < 0.25:
        return LookupDrafter(1), [some_chain(dice)]
    label = dice.choice(["mxfp4", "int8", "int4-g32", "int3", "int2"])
    model = low_bit_copy(label, dice.choice(["int8", "bf16"]))
    views = None if dice.random() < 0.25 else views
    if dice.random() < 0.25:
        return some_tree(dice, model, f"{label} {depth}", views)
    chains: list[Budget] = []  # of the levels below

    def below(views: Views) -> Drafter:
        inner, budgets = some_copies(dice, views, depth + 1)
        chains.extend(budgets)
        return inner

    more = depth < 3 and dice.random() < 0.75
    drafter = ModelDrafter(
        model,
        Sampler,
        name=f"{label} {depth}",
        vocab_size=TOKENS,
        below=below if more else None,
        views=views,
    )
    return drafter, [some_chain(dice), *chains]


@pytest.mark.prove
def test_ladders_of_copies_of_all_forms_change_nothing() -> None:
    events: Counter[str] = Counter()
    for seed in range(LADDERS):
        dice, caches = random.Random(seed), Caches()
        requests, leveled = some_requests(dice), some_copies(dice, caches)
        events += expect_plain(seed, dice, requests, leveled, caches)
    assert events["accepted"] > 1000 * LADDERS // 150, events
    assert events["drafted"] > events["accepted"] + 1000 * LADDERS // 150, events
    for level in range(4 if LADDERS > 100 else 3):  # the fourth is rare
        assert events[f"from level {level}"] > 3, events


def some_fractal(dice: random.Random, caches: Caches, poison: bool) -> Leveled:
    """A copy of the target, low-bit or with noise in it, embedded in it before some of its layers, or any."""
    noisy = draft_model(dice.choice([0.0, 0.1]), TOKENS, 64, None, dice.randrange(60) if poison else None)
    low_bit = low_bit_copy(dice.choice(["mxfp4", "int8", "int3", "int2"]), dice.choice(["int8", "bf16"]))
    kind = PublishedFractalDrafter if dice.random() < 0.3 else FractalDrafter
    drafter = kind(
        noisy if poison or dice.random() < 0.3 else low_bit,
        Sampler,
        name="fractal",
        vocab_size=TOKENS,
        target=target(),
        layers=tuple(sorted(dice.sample(range(_LAYERS), dice.randint(1, _LAYERS)))),
        window=dice.choice([1, 2, 4, 9, 70]),
        slots=dice.choice(list(SLOTS)),
        views=caches,
    )
    return drafter, [Budget(most, most) for most in [dice.randint(1, 20)]]


@pytest.mark.parametrize("poison", [False, True], ids=["sound", "with NaN"])
def test_embedded_copies_of_all_forms_change_nothing(poison: bool) -> None:
    events: Counter[str] = Counter()
    for seed in range(SEEDS // 2):
        dice, caches = random.Random(seed), Caches()
        requests, leveled = some_requests(dice), some_fractal(dice, caches, poison)
        events += expect_plain(seed, dice, requests, leveled, caches)
    assert events["accepted"] > 50, events
    assert events["drafted"] > events["accepted"] + 50, events


def test_a_copy_whose_int8_inputs_are_too_large_drafts_nothing() -> None:
    # float32 goes on beyond 2**60, the largest number that is quantised; the target notices nothing
    config = tiny_config(num_hidden_layers=_LAYERS)
    tensors = random_tensors(config, 1)
    for name, tensor in tensors.items():
        if name.endswith("up_proj.weight"):
            tensor.mul_(2.0**63)
        if name.endswith("down_proj.weight"):
            tensor.mul_(2.0**-63)
    weights = assemble(tensors, config)
    large = Decoder(config, weights, threads=1)
    request = Request(0, (5, 6, 7), 24)
    plain = Run(large, NothingDrafter(), [request]).sequences[0]
    for inputs, drafts in (("int8", False), ("bf16", True)):
        copy = Decoder(config, quantised(weights, config, format_of("int8"), inputs=inputs), threads=1)
        if not copy.arithmetic.startswith("native"):
            pytest.skip("in PyTorch inputs are not quantised")
        for inner in (None, LookupDrafter(1)):
            caches = Caches()
            drafter = ModelDrafter(
                copy, Sampler, name="copy", vocab_size=TOKENS, views=caches, below=without_views(inner)
            )
            run = Run(large, drafter, [request], budgets=chain_of(8, 2), caches=caches)
            assert run.sequences[0].tokens == plain.tokens
            assert any(sum(record.drafted.values()) for record in run.records) == drafts


def test_a_greedy_chain_ends_where_the_draft_meets_a_nan() -> None:
    # the draft itself chooses the token whose embedding is NaN, and its window forgets the row that held it
    died = drafted = 0
    request = Request(0, (5, 6, 7), 24)
    plain = Run(target(), NothingDrafter(), [request]).sequences[0].tokens
    for poisoned in range(TOKENS):
        model = draft_model(0.0, TOKENS, 64, 2, poisoned)
        drafter = ModelDrafter(model, Sampler, name="model", vocab_size=TOKENS)
        run = Run(target(), drafter, [request], num_speculative_tokens=8)
        assert run.sequences[0].tokens == plain
        lengths = [record.drafted[0] for record in run.records[1:]]
        drafted += sum(lengths)
        died += any(0 < length < 8 for length in lengths[:-3])
    assert drafted > 100
    assert died > 0, "no chain met the NaN"


def test_a_draft_reads_no_prompt_for_which_it_has_no_room() -> None:
    model = draft_model(0.0, TOKENS, 8, None, None)
    drafter = ModelDrafter(model, Sampler, name="model", vocab_size=TOKENS)
    drafter.begin([Request(0, tuple(range(30)), 5)])
    drafter.observe([Verdict(0, 0, 30, (), (), (), prompt_left=4)])
    assert not drafter.propose([Turn(0, 1, 30, 5, 5)])[0].tokens
    own = drafter._readings[0]._own
    assert own is not None
    assert own.length == 0


def test_what_a_level_above_guessed_wrongly_does_not_silence_a_draft() -> None:
    drafter = ModelDrafter(draft_model(0.0, 60, 64, None, None), Sampler, name="model", vocab_size=TOKENS)
    request = Request(0, (5, 6, 7), 20)
    drafter.begin([request])
    reading = drafter._readings[0]
    reading.gain([8, 90])
    assert reading.room() == 0, "token 90 is not the draft's"
    drafter.rewind(0, 4)
    assert reading.room() > 0
