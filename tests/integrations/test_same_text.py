"""A model with a draft attached generates what transformers alone generates, whatever the configuration says."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch

import foretoken
from tests.chance import assert_drawn_from
from tests.decoder.models import FAMILIES_TABLE
from tests.integrations.theirs import END, model_of, prompts

CONFIGS = 100
TOGETHER = 20  # configurations of one test


@pytest.mark.parametrize("name", [case.name for case in FAMILIES_TABLE])
def test_all_families_tied_and_untied_alone_and_in_padded_batches(name: str) -> None:
    model = model_of(name)
    accepted = 0
    for lengths in ((9,), (5, 12, 8)):
        asked: dict[str, Any] = {**prompts(*lengths), "max_new_tokens": 40}
        theirs = foretoken.detach(model).generate(**asked)
        ours = foretoken.attach(model, draft="lookup:min_match=1", pace="fixed").generate(**asked)
        assert torch.equal(ours, theirs)
        accepted += sum(done.stats.accepted_tokens for done in model.generate.completions)
    assert accepted > 0


def configuration(rng: random.Random) -> dict[str, Any]:
    """A random configuration of greedy text."""

    def tokens(most: int) -> list[int]:
        return rng.sample(range(3, 101), rng.randint(1, most))

    possible: dict[str, Any] = {
        "repetition_penalty": rng.choice([0.8, 1.1, 1.3]),
        "no_repeat_ngram_size": rng.randint(1, 4),
        "bad_words_ids": [tokens(1), tokens(3)],
        "min_new_tokens": rng.randint(1, 12),
        "min_length": rng.randint(1, 20),
        "suppress_tokens": tokens(20),
        "begin_suppress_tokens": tokens(20),
        "sequence_bias": [[tokens(1), rng.uniform(-4, 4)], [tokens(2), rng.uniform(-4, 4)]],
        "forced_eos_token_id": END,
        "forced_bos_token_id": 5,
        "exponential_decay_length_penalty": (4, 1.2),
        "eos_token_id": [END, *tokens(12)],
        "remove_invalid_values": True,
        "renormalize_logits": True,
        "use_cache": False,
        "encoder_repetition_penalty": 1.2,
        "encoder_no_repeat_ngram_size": 3,
    }
    chosen = {name: possible[name] for name in rng.sample(list(possible), rng.randint(0, 4))}
    length = {"max_new_tokens": rng.randint(1, 30)} if rng.random() < 0.8 else {"max_length": rng.randint(16, 40)}
    return {"do_sample": False, **chosen, **length}


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
@pytest.mark.parametrize("first", range(0, CONFIGS, TOGETHER))
def test_random_configurations(first: int) -> None:
    model = model_of("qwen2", seed=first)
    fields: Counter[str] = Counter()
    for seed in range(first, first + TOGETHER):
        rng = random.Random(seed)
        chosen = configuration(rng)
        of_a_batch = {"encoder_repetition_penalty", "encoder_no_repeat_ngram_size"} & set(chosen)
        rows = [rng.randint(2, 14) for _ in range(1 if of_a_batch else rng.randint(1, 3))]
        dictionary = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        asked = {**prompts(*rows, seed=seed), **chosen, **dictionary}
        theirs = foretoken.detach(model).generate(**asked)
        ours = foretoken.attach(model, draft="lookup:min_match=1", pace="fixed").generate(**asked)
        assert torch.equal(ours.sequences, theirs.sequences), chosen
        assert len(ours.scores) == len(theirs.scores) == len(ours.logits)
        alive = torch.ones(len(rows), dtype=torch.bool)
        ends = chosen.get("eos_token_id", [END])
        for at, (one, other) in enumerate(zip(ours.scores, theirs.scores, strict=True)):
            assert torch.allclose(one[alive], other[alive], atol=1e-4), (at, chosen)
            assert torch.allclose(ours.logits[at][alive], theirs.logits[at][alive], atol=1e-4)
            alive &= ~torch.isin(theirs.sequences[:, asked["input_ids"].shape[1] + at], torch.tensor(ends))
        fields.update(list(chosen))
    assert len(fields) > 10


@pytest.mark.parametrize(
    "warping",
    [
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_k": 0, "top_p": 0.8},
        {"top_k": 0, "min_p": 0.2},
        {"top_k": 0, "typical_p": 0.97},
        {"top_k": 6, "bad_words_ids": [[7], [8]], "repetition_penalty": 1.5},
        {"top_k": 0, "temperature": 2.0, "epsilon_cutoff": 0.02},
    ],
    ids=str,
)
def test_samples_come_from_the_distribution_that_transformers_draws_from(warping: dict[str, Any]) -> None:
    model = model_of("llama-tied")
    asked = {**prompts(6), "do_sample": True, "max_new_tokens": 1, **warping}
    found = foretoken.detach(model).generate(**asked, return_dict_in_generate=True, output_scores=True)
    probabilities = torch.softmax(found.scores[0][0].double(), -1)
    foretoken.attach(model, draft="none")
    many = model.generate(**asked, num_return_sequences=400)[:, -1].tolist()
    many += model.generate(**asked, num_return_sequences=400)[:, -1].tolist()
    possible = {token: float(each) for token, each in enumerate(probabilities) if each > 0}
    assert len(possible) > 1
    assert_drawn_from(Counter(many), possible)


@pytest.mark.parametrize("warping", [{}, {"no_repeat_ngram_size": 3}, {"typical_p": 0.9}], ids=str)
def test_the_global_seed_decides_samples_and_no_draft_changes_them(warping: dict[str, Any]) -> None:
    model = model_of("llama-tied", seed=1)
    asked = {**prompts(6, 4), "do_sample": True, "max_new_tokens": 60, "eos_token_id": None, **warping}
    texts = []
    for draft, seed in (("none", 7), ("lookup:min_match=1", 7), ("int8:tokens=3", 7), ("none", 8)):
        foretoken.attach(model, draft=draft, pace="fixed")
        torch.manual_seed(seed)
        texts.append(model.generate(**asked))
    plain, looked, copied, other = texts
    assert torch.equal(plain, looked)
    assert torch.equal(plain, copied)
    assert not torch.equal(plain, other)
    assert not torch.equal(plain, model.generate(**asked))  # the seed goes on
