"""Drafters that others have trained compute and draft what their authors' code does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foretoken.decoder.decoder import Decoder
from foretoken.decoder.rows import chain
from foretoken.drafters.eagle import EagleDrafter, EagleTreeDrafter
from foretoken.protocol.types import Budget, Request
from foretoken.sampling.sampler import Sampler
from foretoken.trained.config import VOCABULARY
from foretoken.trained.following import Before
from foretoken.trained.published import OWN_EMBEDDING, OWN_HEAD
from tests.fakes import FarVerifier
from tests.published import (
    BLOCKS,
    EAGLES,
    filling_decoder,
    filling_drafter,
    published_decoder,
    random_dflash,
    random_published,
)
from tests.trained.published_defined import DefinedBlock, DefinedEagle
from tests.world import VOCABULARY as VOCABULARY_OF_WORLD
from tests.world import Run, World, make_world

NEAR = 0.1  # logits that differ by less may change places: beside its layers, the native engine rounds to bf16


def engines(target: Decoder, arithmetic: str) -> tuple[Decoder, float]:
    """A decoder like a target, and how far from the definition it may be: beside layers, the native engine rounds to
    bf16."""
    made = Decoder(target.config, target.weights, threads=1, arithmetic=arithmetic)
    return made, 0.03 if made.arithmetic.startswith("native") else 1e-5


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("variant", EAGLES)
def test_an_eagle_computes_what_its_authors_code_computes(target: Decoder, variant: str, arithmetic: str) -> None:
    other, close = engines(target, arithmetic)
    config, tensors = random_published(other, 5, 0.1, **dict(EAGLES[variant]))
    decoder = published_decoder(other, 5, 0.1, **dict(EAGLES[variant]))
    embedding = tensors.get(OWN_EMBEDDING, target.weights.embedding)
    listed = tensors.get(VOCABULARY, torch.arange(config.choices)).long()
    defined = DefinedEagle(config, tensors, embedding, tensors[OWN_HEAD])
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, target.config.valid_vocab_size, (15,), generator=generator).tolist()
    seen = {f"hidden.{at}": torch.randn((9, config.hidden_size), generator=generator) for at in config.sees}
    known, expected = decoder.reduced(seen), defined.reduced(list(seen.values()))
    torch.testing.assert_close(known, expected, rtol=close, atol=close)
    cache, states = decoder.new_cache(), list(expected)
    decoder.follow(cache, Before(list(known.numpy())))
    for stop in (5, 10, *range(11, 16)):  # two passes behind the model's states, then a draft token by token
        rows = chain(cache, tokens[1 + cache.length : stop])
        out = decoder.run(rows)
        cache.commit(range(len(rows)), rows.writer)
        logits, state = defined.rows(tokens[1:stop], states[: stop - 1])
        found = out.logits(len(rows) - 1)
        torch.testing.assert_close(found[listed], logits, rtol=close, atol=close * 5)
        assert found.isfinite().sum() == len(listed), "nothing else can be drafted"
        choice = out.choice(len(rows) - 1)
        place = (listed == choice).nonzero().flatten()
        assert len(place) == 1
        assert logits.max() - logits[place] < close * 10
        if stop >= 10:
            states.append(state)
    assert len(states) == 15


@pytest.mark.parametrize("arithmetic", ["pytorch", "auto"])
@pytest.mark.parametrize("variant", BLOCKS)
def test_a_block_computes_what_its_authors_code_computes(target: Decoder, variant: str, arithmetic: str) -> None:
    other, close = engines(target, arithmetic)
    config, tensors = random_dflash(other, 5, 0.1, **dict(BLOCKS[variant]))
    decoder = filling_decoder(other, 5, 0.1, **dict(BLOCKS[variant]))
    head = tensors.get(OWN_HEAD, other.weights.head.values)
    defined = DefinedBlock(config, tensors, target.weights.embedding, head)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, target.config.valid_vocab_size, (12,), generator=generator).tolist()
    seen = {f"hidden.{at}": torch.randn((11, config.hidden_size), generator=generator) for at in config.sees}
    listed = tensors.get(VOCABULARY, torch.arange(target.config.valid_vocab_size)).long()
    cache, both, vectors = decoder.new_cache(), [], decoder.reduced(seen)
    for stop, fewer in ((4, 0), (11, 0), (11, 1)):
        if cache.length < stop:
            decoder.fill(cache, tokens[cache.length : stop], vectors[cache.length : stop])
        rows = decoder.blocks([(cache, tokens[stop], config.drafts - fewer)], 1)
        assert len(rows) == config.block - fewer
        out = decoder.run(rows)
        found = torch.stack([out.logits(at)[listed] for at in range(len(rows))])
        expected = defined.block([each[:stop] for each in seen.values()], tokens[stop], len(rows))[:, : len(listed)]
        torch.testing.assert_close(found, expected, rtol=close, atol=close * 5)
        cache.discard()
        both.append(found[0])
    assert not torch.allclose(both[0], both[1]), "what the target has computed is seen"
    assert not torch.allclose(both[1], both[2]), "rows behind are seen"


class Told:
    """Notes the drafts of a drafter, with the sequence and the text before each."""

    def __init__(self, its: Any, prompts: Sequence[Sequence[int]]) -> None:
        self.texts = [list(prompt) for prompt in prompts]
        self.drafts: list[tuple[Any, ...]] = []
        self.shared = 0  # calls that drafted for several sequences
        self._propose, self._observe = its.propose, its.observe
        its.propose, its.observe = self.propose, self.observe

    def propose(self, turns: Any) -> Any:
        found = self._propose(turns)
        made = [draft for draft in found if draft.tokens]
        self.drafts += [(d.sequence, tuple(self.texts[d.sequence]), d.tokens, d.parents) for d in made]
        self.shared += len(made) > 1
        return found

    def observe(self, verdicts: Any) -> Any:
        for verdict in verdicts:
            self.texts[verdict.sequence] += verdict.tokens
        return self._observe(verdicts)


def drafted(world: World, drafter: Any, budget: Budget, **more: Any) -> list[tuple[Any, ...]]:
    """What a drafter proposes while an engine generates two texts at once."""
    plains = world.plains[:2]
    told = Told(drafter, [plain.prompt for plain in plains])
    requests = [
        Request(sequence=at, prompt=plain.prompt, max_new_tokens=12, keep_logits=True)
        for at, plain in enumerate(plains)
    ]
    run = Run(world.target, drafter, requests, budgets=(budget,), prefill_chunk=5, **more)
    assert all(run.sequences[at].tokens == plain.tokens[:12] for at, plain in enumerate(plains))
    assert len(told.drafts) > 3
    assert told.shared > 1
    return told.drafts


def inputs_of(target: Decoder, text: Sequence[int], layers: Sequence[int]) -> list[torch.Tensor]:
    rows = chain(target.new_cache(), list(text))
    taps = target.check(rows, [range(len(text) - 1, len(text))], layers).taps
    return [taps[layer].float() for layer in layers]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("shape", [None, "best-first"])
def test_in_an_engine_an_eagle_drafts_what_the_definition_drafts(shape: str | None, ahead: int) -> None:
    world = make_world()
    switches: dict[str, Any] = {"residual_normed": False, "sees": (0, 1, 3)}
    config, tensors = random_published(world.target, 3, 0.3, **switches)
    model = published_decoder(world.target, 3, 0.3, **switches)
    common: dict[str, Any] = {"name": "it", "vocab_size": VOCABULARY_OF_WORLD, "model": model, "samplers": Sampler}
    drafter = EagleDrafter(**common) if shape is None else EagleTreeDrafter(shape=shape, sharpness=1.0, **common)
    defined = DefinedEagle(config, tensors, world.target.weights.embedding, tensors[OWN_HEAD])
    wrap = FarVerifier if ahead else None
    drafts = drafted(world, drafter, Budget(4, 4) if shape is None else Budget(6, 3, 2), wrap=wrap, ahead=ahead)
    compared = 0
    for _, text, tokens, parents in drafts:
        states = list(defined.reduced(inputs_of(world.target, text[:-1], config.sees)))
        paths: dict[int, list[int]] = {-1: []}
        for at, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            paths[at] = [*paths[parent], token]
        for parent in {*parents}:
            own, path = list(states), paths[parent]
            for length in range(len(path) + 1):
                logits, state = defined.rows([*text[1:], *path[:length]], own)
                own.append(state)
            children = [token for token, above in zip(tokens, parents, strict=True) if above == parent]
            row = dict(zip(tensors[VOCABULARY].tolist(), logits.tolist(), strict=True))
            compared += len(children)
            likeliest = sorted(row.values())[-len(children)]
            assert all(row[token] >= likeliest - NEAR for token in children), "behind the states of the text, and own"
    assert compared > 12


@pytest.mark.parametrize("shape", ["beam", "best-first"])
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("variant", BLOCKS)
def test_in_an_engine_a_block_drafts_what_the_definition_drafts(variant: str, width: int, shape: str) -> None:
    world = make_world()
    sizes: dict[str, Any] = {"sees": (0, 1, 2), **BLOCKS[variant]}
    config, tensors = random_dflash(world.target, 3, 0.3, **dict(sizes))
    drafter = filling_drafter(filling_decoder(world.target, 3, 0.3, **dict(sizes)), VOCABULARY_OF_WORLD, shape=shape)
    listed = tensors.get(VOCABULARY, torch.arange(VOCABULARY_OF_WORLD)).tolist()
    head = tensors.get(OWN_HEAD, world.target.weights.head.values)
    defined = DefinedBlock(config, tensors, world.target.weights.embedding, head)
    first = 0 if config.from_last else 1
    for sequence, text, tokens, parents in drafted(world, drafter, Budget(4 * width, 4, width)):
        depths = {-1: 0}
        for at, parent in enumerate(parents):
            depths[at] = depths[parent] + 1
        end = len(world.plains[sequence].prompt) + 12
        count = min(4, config.drafts, end - len(text) - 1)  # the last token of a text is the model's own
        logits = defined.block(inputs_of(world.target, text[:-1], config.sees), text[-1], count + first)
        assert float(logits.std()) > 10 * NEAR
        for at, token in enumerate(tokens):
            row = dict(zip(listed, logits[depths[at] - 1 + first].tolist(), strict=False))
            assert row[token] >= sorted(row.values())[-width] - NEAR, "the row of a place says what it holds"
