"""What transformers' `generate` does besides choosing tokens: defaults, ends, outputs, threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

import foretoken
from foretoken.api.build import load
from tests.integrations.asking import Counting
from tests.integrations.theirs import attached, both, model_of, prompts


def test_where_nothing_is_set_the_text_is_greedy_and_twenty_tokens_long() -> None:
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        ours, theirs = both(lambda model: model.generate(**prompts(6), eos_token_id=None))
    assert torch.equal(ours, theirs)
    assert ours.shape[1] == 26


def test_once_it_samples_fifty_tokens_are_left_to_choose_from() -> None:
    model = attached(draft="none")
    asked = {**prompts(6), "do_sample": True, "max_new_tokens": 1}
    found = model.generate(**asked, return_dict_in_generate=True, output_scores=True)
    assert int((found.scores[0] > -float("inf")).sum()) == 50


def test_the_model_s_own_configuration_is_followed_and_arguments_come_first() -> None:
    ours, theirs = both(lambda model: model.generate(**prompts(6)), max_new_tokens=30, repetition_penalty=1.4)
    assert torch.equal(ours, theirs)
    assert ours.shape[1] > 26
    ours, theirs = both(lambda model: model.generate(**prompts(6), max_new_tokens=3), max_new_tokens=30)
    assert torch.equal(ours, theirs)
    ours, theirs = both(
        lambda model: model.generate(**prompts(6), generation_config=GenerationConfig(max_new_tokens=9)),
        max_new_tokens=30,
    )
    assert torch.equal(ours, theirs)


def test_several_end_tokens_and_none() -> None:
    text = model_of().generate(**prompts(6), max_new_tokens=40, eos_token_id=None)[0, 6:].tolist()
    for ends in (text[9], [99, text[12], text[20]], None):
        ours, theirs = both(lambda model, ends=ends: model.generate(**prompts(6), max_new_tokens=40, eos_token_id=ends))
        assert torch.equal(ours, theirs)


def test_input_ids_alone_and_in_other_places() -> None:
    ids = prompts(6)["input_ids"]
    ours, theirs = both(lambda model: model.generate(ids, max_new_tokens=5))
    assert torch.equal(ours, theirs)
    ours, theirs = both(lambda model: model.generate(inputs=ids, max_new_tokens=5))
    assert torch.equal(ours, theirs)
    ours, theirs = both(lambda model: model.generate(ids, GenerationConfig(max_new_tokens=7)))
    assert torch.equal(ours, theirs)


def test_a_dictionary_comes_back_if_it_is_asked_for() -> None:
    asked = {**prompts(6, 3), "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True}
    found = attached().generate(**asked)
    assert isinstance(found, transformers.generation.GenerateDecoderOnlyOutput)
    assert found.logits is None
    theirs = model_of()
    scores = theirs.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
    assert scores.shape == (2, len(found.scores))


def test_texts_end_with_the_context_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    found = attached().generate(**prompts(9, 5), max_new_tokens=200, eos_token_id=None)
    assert found.shape[1] == 128
    assert "texts end with the model's context of 128 tokens" in caplog.text


@pytest.mark.parametrize("ends", [-1, [2, 5000]])
def test_end_tokens_that_the_model_has_not_end_nothing(ends: Any) -> None:
    ours, theirs = both(lambda model: model.generate(**prompts(6), max_new_tokens=40, eos_token_id=ends))
    assert torch.equal(ours, theirs)


def test_threads_that_share_a_model_have_their_own_texts() -> None:
    model = attached()
    asked = {"max_new_tokens": 40, "no_repeat_ngram_size": 5}
    alone = [model.generate(**prompts(6, seed=seed), **asked) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        beside = list(
            pool.map(
                lambda seed: model.generate(**prompts(6, seed=seed), max_new_tokens=40, no_repeat_ngram_size=5),
                range(4),
            )
        )
    assert all(map(torch.equal, alone, beside))


def test_a_pipeline_generates_text() -> None:
    known = load("stdlib-1m", draft="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(known.folder)
    texts = []
    for change in (foretoken.attach, foretoken.detach):
        model = change(transformers.AutoModelForCausalLM.from_pretrained(known.folder, dtype=torch.float32))
        pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
        texts.append(pipe(["def add(", "class Reader:"], max_new_tokens=20, do_sample=False, batch_size=2))
        texts[-1].append(pipe("import os", max_new_tokens=20, do_sample=False, stop_sequence=":"))
    assert texts[0] == texts[1]


def test_what_is_said_of_caches_changes_nothing() -> None:
    for asked in ({"cache_implementation": "static"}, {"use_cache": False}):
        ours, theirs = both(lambda model, asked=asked: model.generate(**prompts(6), max_new_tokens=9, **asked))
        assert torch.equal(ours, theirs)


def test_completions_say_what_ended_a_text() -> None:
    model = attached()
    text = model_of().generate(**prompts(6), max_new_tokens=40, eos_token_id=None)[0, 6:].tolist()
    for asked, reason, count in (
        ({"eos_token_id": text[20]}, "stop", text.index(text[20]) + 1),
        ({"eos_token_id": None}, "length", 40),
        ({"eos_token_id": None, "stopping_criteria": [Counting(text[9])]}, "stop", text.index(text[9]) + 1),
    ):
        model.generate(**prompts(6), max_new_tokens=40, **asked)
        (done,) = model.generate.completions
        assert (done.finish_reason, list(done.tokens)) == (reason, text[:count])
