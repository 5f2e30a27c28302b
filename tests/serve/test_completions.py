"""Completions: the texts of plain decoding, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from foretoken.errors import PromptError
from foretoken.serve.asking import Asking
from foretoken.serve.fields import CompletionBody
from foretoken.serve.limits import Limits
from tests.serve.served import MODEL, PROMPT, SAMPLED, Served, plain, serving, truth


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(draft="mxfp4,lookup") as its:
        yield its


def text_of(events: list[Any]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


@pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_an_answer_is_what_plain_decoding_gives(served: Served, settings: dict[str, Any]) -> None:
    whole = truth(max_new_tokens=48, **settings)
    answer = served.complete(max_tokens=48, return_token_ids=True, **settings)
    (choice,) = answer["choices"]
    assert choice["token_ids"] == list(whole.tokens)
    assert choice["text"] == whole.text
    assert choice["finish_reason"] == whole.finish_reason
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert answer["usage"]["prompt_tokens"] == whole.prompt_tokens
    assert answer["usage"]["completion_tokens"] == 48
    assert answer["foretoken"]["promise"] == "exact"
    assert answer["foretoken"]["seed"] == whole.seed
    assert answer["foretoken"]["draft"] == "mxfp4,lookup"
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0  # it was not vacuous
    assert answer["timings"]["draft_n"] >= answer["timings"]["draft_n_accepted"] > 0


@pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_stream_has_an_event_for_each_round(served: Served, settings: dict[str, Any]) -> None:
    whole = truth(max_new_tokens=48, **settings)
    usage = {"stream_options": {"include_usage": True}, "return_token_ids": True}
    events = served.stream(max_tokens=48, **usage, **settings)
    assert text_of(events) == whole.text
    *rounds, last, counts = events
    tokens = [event["choices"][0]["token_ids"] for event in rounds]
    assert [token for each in tokens for token in each] == list(whole.tokens)
    assert max(map(len, tokens)) > 1  # a round that accepted a draft
    assert events[0]["prompt_token_ids"] == list(plain().tokens_of(PROMPT))
    assert last["choices"][0]["finish_reason"] == "length"
    assert all(event["choices"][0]["finish_reason"] is None and event["usage"] is None for event in rounds)
    assert counts["choices"] == []
    assert counts["usage"]["completion_tokens"] == 48
    assert counts["foretoken"]["promise"] == "exact"


def test_requests_at_once_have_the_texts_that_each_has_alone(served: Served) -> None:
    prompts = ["def add(", PROMPT, "import os\nimport", "class Stack:\n    def push(self, item):", "x = 1"]
    asked = [
        {"prompt": prompt, "max_tokens": 20 + 7 * at, **(SAMPLED if at % 2 else {})}
        for at, prompt in enumerate(prompts * 2)
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda body: served.complete(**body), asked))
    for body, answer in zip(asked, answers, strict=True):
        settings = SAMPLED if body.get("seed") else {}
        assert answer["choices"][0]["text"] == truth(body["prompt"], max_new_tokens=body["max_tokens"], **settings).text


def test_several_prompts_and_several_completions_come_in_order(served: Served) -> None:
    prompts = ["def add(", "class Stack:"]
    answer = served.complete(prompt=prompts, n=2, **SAMPLED)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [
        each.text for prompt in prompts for each in plain().completions(prompt, n=2, max_new_tokens=24, **SAMPLED)
    ]
    assert [choice["text"] for choice in answer["choices"]] == expected
    assert answer["usage"]["completion_tokens"] == 4 * 24
    assert answer["metrics"]["speculative_decoding"] is None  # of which text would it be?
    streamed = served.stream(prompt=prompts, n=2, **SAMPLED)
    texts = ["", "", "", ""]
    for event in streamed:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == expected


def test_token_ids_are_a_prompt_too(served: Served) -> None:
    ids = list(plain().tokens_of(PROMPT))
    assert served.complete(prompt=ids)["choices"][0]["text"] == truth(max_new_tokens=24).text
    both = served.complete(prompt=[ids, ids[:5]])["choices"]
    assert [each["text"] for each in both] == [truth(each, max_new_tokens=24).text for each in (ids, ids[:5])]
    cut = served.complete(prompt=ids, truncate_prompt_tokens=5)
    assert cut["choices"][0]["text"] == truth(ids[-5:], max_new_tokens=24).text


def test_a_stop_string_ends_text_tokens_and_log_probabilities_together(served: Served) -> None:
    stop = truth(max_new_tokens=64).text[41:47]  # within tokens, as it happens
    whole = truth(max_new_tokens=64, stop=[stop], logprobs=0)
    assert whole.stop_string == stop
    for more in ({}, {"stream": True}):
        body = {"prompt": PROMPT, "max_tokens": 64, "temperature": 0, "stop": [stop], "logprobs": 0, **more}
        answer = served.ask("/v1/completions", {**body, "return_token_ids": True})
        choices = [choice for event in answer.events for choice in event["choices"]] if more else answer.json["choices"]
        assert "".join(choice["text"] for choice in choices) == whole.text
        assert choices[-1]["finish_reason"] == "stop"
        assert choices[-1]["stop_reason"] == stop
        ids = [token for choice in choices for token in choice.get("token_ids", ())]
        assert ids == list(whole.tokens)
        values = [value for choice in choices for value in (choice["logprobs"] or {}).get("token_logprobs", ())]
        assert values == [each.logprob for each in whole.logprobs or ()]
    kept = served.complete(max_tokens=64, stop=stop, include_stop_str_in_output=True)["choices"][0]
    assert kept["text"] == whole.text + stop
    token = whole.tokens[5]
    ended = served.complete(max_tokens=64, stop_token_ids=[token])["choices"][0]
    assert (ended["finish_reason"], ended["stop_reason"]) == ("stop", token)


def test_echo_gives_the_log_probabilities_of_the_prompt(served: Served) -> None:
    ids = list(plain().tokens_of(PROMPT))
    answer = served.complete(prompt=[ids, ids[:9]], echo=True, logprobs=1, max_tokens=1)
    for choice, prompt in zip(answer["choices"], (ids, ids[:9]), strict=True):
        found = choice["logprobs"]
        assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(prompt) + 1
        assert found["token_logprobs"][0] is None
        for at in range(1, len(prompt)):  # each as a generation of its own sees it
            (its,) = truth(prompt[:at], max_new_tokens=1, logprobs=100, logit_bias={prompt[at]: 1000.0}).logprobs or ()
            assert its.token == prompt[at]
            assert found["token_logprobs"][at] == pytest.approx(its.logprob, abs=1e-9)
            assert max(found["top_logprobs"][at].values()) == pytest.approx(its.top[0][1], abs=1e-9)
        assert choice["text"].startswith(PROMPT[:10])
    none = served.complete(prompt=ids, echo=True, max_tokens=0)
    assert none["choices"][0]["text"] == PROMPT


def test_a_prediction_is_where_a_lookup_finds_drafts() -> None:
    with serving(draft="lookup") as served:
        whole = truth(max_new_tokens=60, **SAMPLED)
        lines = whole.text.split("\n")
        lines[len(lines) // 2] = "        nothing of the kind"
        without = served.complete(max_tokens=60, **SAMPLED)
        content = {"type": "content", "content": "\n".join(lines)}
        answer = served.complete(max_tokens=60, prediction=content, **SAMPLED)
    assert answer["choices"][0]["text"] == without["choices"][0]["text"] == whole.text
    details = answer["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20
    assert details["rejected_prediction_tokens"] > 0
    assert without["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    rate = [each["foretoken"]["stats"]["mean_acceptance_length"] for each in (answer, without)]
    assert rate[0] > 1.5 * rate[1]


def test_of_a_prediction_no_more_is_read_than_an_output_can_have() -> None:
    asking = Asking(plain(), Limits(context=100))
    content = {"type": "content", "content": "x = 1\n" * 1000}
    wanted = asking.completion(CompletionBody.model_validate({"prompt": PROMPT, "prediction": content}))
    assert wanted.prompts[0][0].predicted == asking.encode("x = 1\n" * 1000, special=False)[:100]


def test_a_prompt_that_is_far_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking(plain(), Limits(context=100))
    read: list[int] = []
    encode = asking.encode
    monkeypatch.setattr(asking, "encode", lambda text, **how: read.append(len(text)) or encode(text, **how))
    with pytest.raises(PromptError, match="the prompt has more than 200 tokens, and a text here has at most 100"):
        asking.completion(CompletionBody.model_validate({"prompt": "x = 1\n" * 1_000_000}))
    assert read == [1600]
    cut = CompletionBody.model_validate({"prompt": "x = 1\n" * 1000, "truncate_prompt_tokens": 5})
    assert asking.completion(cut).prompts[0][0].prompt == encode("x = 1\n" * 1000)[-5:]


@pytest.mark.parametrize(("draft", "origins"), [("none", {"target"}), ("lookup", {"target", "lookup"})])
def test_a_request_chooses_what_drafts(served: Served, draft: str, origins: set[str]) -> None:
    events = served.stream(max_tokens=40, draft=draft, foretoken={"trace": True})
    traced = [event["choices"][0]["foretoken"] for event in events if "foretoken" in event["choices"][0]]
    found = {token["origin"] for each in traced for token in each["tokens"]}
    assert found == origins
    assert text_of(events) == truth(max_new_tokens=40).text
    assert sum(len(each["tokens"]) for each in traced) == 40
    assert all(-20 < token["logprob"] <= 0 for each in traced for token in each["tokens"])
    if draft == "none":
        assert not any(each["rejected"] or each["levels"] for each in traced)
    else:
        assert any(each["rejected"] for each in traced)
    positions = [each["position"] for each in traced]
    assert positions == sorted(positions)


def test_an_output_follows_a_form(served: Served) -> None:
    pytest.importorskip("llguidance")
    chosen = served.complete(structured_outputs={"choice": ["a+b", "[c]"]}, max_tokens=20)["choices"][0]
    assert chosen["text"] in ("a+b", "[c]")
    assert chosen["finish_reason"] == "stop"
    digits = served.complete(structured_outputs={"regex": "[0-9]{3}"}, max_tokens=20)["choices"][0]
    assert digits["text"].isdigit()
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert served.complete(response_format=form, max_tokens=40)["choices"][0]["text"].replace(" ", "") in (
        '{"n":1}',
        '{"n":2}',
    )


def test_one_seed_gives_all_prompts_of_a_request_again(served: Served) -> None:
    first = served.complete(prompt=[PROMPT, PROMPT, "def add("], temperature=0.8)
    seed = first["foretoken"]["seed"]
    again = served.complete(prompt=[PROMPT, PROMPT, "def add("], temperature=0.8, seed=seed)
    assert first["choices"] == again["choices"]
    assert first["choices"][0]["text"] == truth(max_new_tokens=24, temperature=0.8, seed=seed).text


def test_offsets_count_on_through_a_stream(served: Served) -> None:
    whole = served.complete(logprobs=0)["choices"][0]["logprobs"]
    events = served.stream(logprobs=0)
    offsets = [at for event in events for at in (event["choices"][0]["logprobs"] or {}).get("text_offset", ())]
    assert offsets == whole["text_offset"]


def test_what_is_echoed_is_what_was_read(served: Served) -> None:
    answer = served.complete(echo=True, truncate_prompt_tokens=3, logprobs=0, prompt_logprobs=2, max_tokens=2)
    (choice,) = answer["choices"]
    tokens = plain().tokens_of(PROMPT)[-3:]
    assert choice["text"].startswith(plain().tokenizer.decode(tokens))  # type: ignore[union-attr]
    assert len(choice["logprobs"]["tokens"]) == 5
    assert len(choice["prompt_logprobs"]) == 3
    none = served.complete(echo=True, max_tokens=0, return_token_ids=True)
    assert none["usage"]["completion_tokens"] == 0
    assert none["choices"][0]["token_ids"] == []


def test_a_request_that_asks_for_no_draft_is_told_so(served: Served) -> None:
    answer = served.complete(draft="none")["foretoken"]
    assert (answer["draft"], answer["why_no_draft"]) == ("none", "The request asked for no draft.")
    assert served.complete(draft="lookup")["foretoken"]["draft"] == "lookup"


def test_a_prompt_is_read_whole_if_that_is_asked_for(served: Served) -> None:
    counts = [
        served.complete(cache_prompt=cache)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for cache in (True, False)
    ]
    assert counts[0] > 0
    assert counts[1] == 0
