"""What transformers' `generate` does besides choosing tokens: defaults, criteria, processors, streamers, outputs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

import foretoken
from foretoken.api.build import load
from foretoken.errors import ModelError, NumericsError, SettingError, UnsupportedModelError
from foretoken.integrations import fields
from tests.integrations.theirs import END, model_of, prompts

LOOKUP = "lookup:min_match=1"


def attached(name: str = "qwen2", draft: str = LOOKUP, **config: Any) -> Any:
    return foretoken.attach(model_of(name, **config), draft=draft, pace="fixed")


def both(run: Callable[[Any], Any], **config: Any) -> tuple[Any, Any]:
    """What comes with a draft, and what comes without."""
    return run(attached(**config)), run(model_of(**config))


# -- defaults ---------------------------------------------------------------------------------------------------------


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


# -- criteria and processors ------------------------------------------------------------------------------------------


class Counting(transformers.StoppingCriteria):
    """Notes what it is asked, and ends a text behind a token."""

    def __init__(self, last: int | None = None) -> None:
        self.asked: list[list[list[int]]] = []
        self.scores: list[int] = []
        self.last = last

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.asked.append(input_ids.tolist())
        self.scores.append(-1 if scores is None else len(scores))
        return input_ids[:, -1] == (-1 if self.last is None else self.last)


class Noting(transformers.LogitsProcessor):
    """Notes what it is asked, and forbids what was chosen three tokens ago."""

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.asked.append(input_ids.tolist())
        changed = scores.clone()
        for row, tokens in enumerate(input_ids.tolist()):
            changed[row, tokens[-3]] = -float("inf")
        return changed


def test_processors_and_criteria_are_asked_once_a_position_in_order() -> None:
    seen = []
    for make in (attached, model_of):
        order: list[tuple[str, int]] = []
        processor, criterion = Noting(), Counting()
        model = make()
        both_note(processor, criterion, order)
        asked: dict[str, Any] = {**prompts(6), "max_new_tokens": 40, "eos_token_id": None}
        text = model.generate(**asked, logits_processor=[processor], stopping_criteria=[criterion])
        seen.append((text.tolist(), processor.asked, criterion.asked, order))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == 40


def both_note(processor: Noting, criterion: Counting, order: list[tuple[str, int]]) -> None:
    """Note the order in which the two are asked."""
    class_of = type(processor), type(criterion)

    class Processor(class_of[0]):  # type: ignore[misc,valid-type]
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            order.append(("processor", input_ids.shape[1]))
            return super().__call__(input_ids, scores)

    class Criterion(class_of[1]):  # type: ignore[misc,valid-type]
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            order.append(("criterion", input_ids.shape[1]))
            return super().__call__(input_ids, scores)

    processor.__class__, criterion.__class__ = Processor, Criterion


def test_a_criterion_ends_a_text_where_it_ends_with_transformers_and_nothing_is_asked_behind() -> None:
    text = model_of().generate(**prompts(6), max_new_tokens=40, eos_token_id=None)[0, 6:].tolist()
    for last in (text[0], text[7], text[25]):
        seen = []
        for make in (attached, model_of):
            criterion = Counting(last)
            found = make().generate(**prompts(6), max_new_tokens=40, eos_token_id=None, stopping_criteria=[criterion])
            seen.append((found.tolist(), criterion.asked))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("ends", [END, None], ids=["padded", "without an end token"])
def test_criteria_see_the_whole_batch_though_texts_grow_at_different_speeds(ends: int | None) -> None:
    alone = model_of().generate(**prompts(6, 9, 4), max_new_tokens=40, eos_token_id=None)
    for last in (int(alone[0, 20]), int(alone[1, 30])):
        seen = []
        for make in (attached, model_of):
            criterion = Counting(last)
            found = make().generate(
                **prompts(6, 9, 4), max_new_tokens=40, eos_token_id=ends, stopping_criteria=[criterion]
            )
            seen.append((found.tolist(), criterion.asked))
        assert seen[0] == seen[1]


def test_criteria_get_the_scores_if_they_are_kept() -> None:
    for make in (attached, model_of):
        criterion = Counting()
        make().generate(
            **prompts(6, 4),
            max_new_tokens=5,
            eos_token_id=None,
            stopping_criteria=[criterion],
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert criterion.scores == [1, 2, 3, 4, 5]


def test_criteria_cut_texts_that_had_ended_by_themselves_later() -> None:
    text = model_of().generate(**prompts(6, 9, 4), max_new_tokens=40, eos_token_id=None)[0, 9:].tolist()
    later = [token for at, token in enumerate(text) if at > 15 and token not in text[:at]]
    assert len(later) > 1

    class Late(transformers.StoppingCriteria):
        """Ends the first text at its 15th token, which a draft may have passed by then."""

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return torch.tensor([input_ids.shape[1] >= 9 + 15, False, False])

    for end in later:
        asked = {**prompts(6, 9, 4), "max_new_tokens": 40, "eos_token_id": end}
        model = attached()
        ours = model.generate(**asked, stopping_criteria=[Late()])
        assert torch.equal(ours, model_of().generate(**asked, stopping_criteria=[Late()]))
        first = model.generate.completions[0]
        assert (len(first.tokens), first.finish_reason) == (15, "stop")


def test_nothing_is_asked_behind_an_end_token_that_a_draft_goes_past() -> None:
    text = model_of("llama-rope-linear").generate(**prompts(6), max_new_tokens=110, eos_token_id=None)[0].tolist()
    accepted = 0
    for back in range(1, 9):  # the prompt holds what follows it once more, so lookup drafts the end token and goes on
        asked = {"input_ids": torch.tensor([text[:-10]]), "max_new_tokens": 10, "eos_token_id": text[-back]}
        seen = []
        for make in (attached, model_of):
            processor, criterion, stream = Quiet(), Counting(), Stream()
            model = make("llama-rope-linear")
            found = model.generate(
                **asked,
                logits_processor=[processor],
                stopping_criteria=[criterion],
                streamer=stream,
                return_dict_in_generate=True,
                output_logits=True,
            )
            seen.append((found.sequences.tolist(), len(found.logits), processor.asked, criterion.asked, stream.put_in))
            if make is attached:
                (done,) = model.generate.completions
                assert [*text[:-10], *done.tokens] == found.sequences[0].tolist()
                accepted += done.stats.accepted_tokens
        assert seen[0] == seen[1]
    assert accepted > 0


class Quiet(transformers.LogitsProcessor):
    """Notes how long texts are, and changes nothing."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.asked.append(input_ids.shape[1])
        return scores


def test_a_length_of_the_caller_s_own_comes_before_the_configuration_s() -> None:
    criteria = [transformers.MaxLengthCriteria(17)]
    with pytest.warns(UserWarning, match="model-agnostic default"):
        ours, theirs = both(lambda model: model.generate(**prompts(6), stopping_criteria=criteria, eos_token_id=None))
    assert torch.equal(ours, theirs)
    assert ours.shape[1] == 17


def test_texts_end_with_the_context_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    found = attached().generate(**prompts(9, 5), max_new_tokens=200, eos_token_id=None)
    assert found.shape[1] == 128
    assert "texts end with the model's context of 128 tokens" in caplog.text


def test_texts_are_padded_even_if_no_token_of_the_model_ends_them() -> None:
    alone = model_of().generate(**prompts(6, 9, 4), max_new_tokens=40, eos_token_id=None)
    last = int(alone[0, 20])
    ours, theirs = both(
        lambda model: model.generate(
            **prompts(6, 9, 4), max_new_tokens=40, eos_token_id=-1, stopping_criteria=[Counting(last)]
        )
    )
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("ends", [-1, [2, 5000]])
def test_end_tokens_that_the_model_has_not_end_nothing(ends: Any) -> None:
    ours, theirs = both(lambda model: model.generate(**prompts(6), max_new_tokens=40, eos_token_id=ends))
    assert torch.equal(ours, theirs)


def test_an_infinite_score_forces_a_token_and_nan_is_told_of() -> None:
    class Forcing(transformers.LogitsProcessor):
        def __init__(self, score: float) -> None:
            self.score = score

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            changed = scores.clone()
            changed[:, 7 + input_ids.shape[1] % 3] = self.score
            return changed

    class Forbidding(transformers.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return torch.full_like(scores, -float("inf"))

    ours, theirs = both(
        lambda model: model.generate(**prompts(6), max_new_tokens=9, logits_processor=[Forcing(float("inf"))])
    )
    assert torch.equal(ours, theirs)
    with pytest.raises(NumericsError, match="the logits processors leave no token to choose"):
        attached().generate(**prompts(6), max_new_tokens=9, logits_processor=[Forbidding()])
    with pytest.raises(NumericsError, match="a logits processor made NaN of the scores"):
        attached().generate(**prompts(6), max_new_tokens=9, logits_processor=[Forcing(float("nan"))])


def test_a_repetition_penalty_that_passes_over_the_prompt() -> None:
    for ignored in (6, torch.tensor([6]), None):
        penalty = transformers.RepetitionPenaltyLogitsProcessor(1.6, prompt_ignore_length=ignored)
        ours, theirs = both(
            lambda model, each=penalty: model.generate(**prompts(6), max_new_tokens=30, logits_processor=[each])
        )
        assert torch.equal(ours, theirs)


def test_time_can_end_a_text() -> None:
    found = attached().generate(**prompts(6), max_new_tokens=100, eos_token_id=None, max_time=1e-9)
    assert found.shape[1] == 7


def test_a_function_that_names_the_allowed_tokens() -> None:
    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        return [(int(ids[-1]) + 1) % 101, (int(ids[-1]) * 2) % 101]

    ours, theirs = both(lambda model: model.generate(**prompts(6), max_new_tokens=30, prefix_allowed_tokens_fn=allowed))
    assert torch.equal(ours, theirs)


def test_a_processor_that_sees_a_whole_batch_is_refused_for_one() -> None:
    with pytest.raises(SettingError, match="Noting sees all texts of a call together"):
        attached().generate(**prompts(6, 4), max_new_tokens=5, logits_processor=[Noting()])


def test_stop_strings_are_kept_as_transformers_keeps_them() -> None:
    known = load("stdlib-1m", draft="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(known.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(known.folder, dtype=torch.float32)
    asked = tokenizer("import os\n\ndef walk(top):", return_tensors="pt", return_token_type_ids=False)
    text = tokenizer.decode(model.generate(**asked, max_new_tokens=60)[0, asked["input_ids"].shape[1] :])
    for stop in ([text[40:46], text[60:66]], text[30:33]):
        given = {**asked, "max_new_tokens": 60, "stop_strings": stop, "tokenizer": tokenizer}
        theirs = foretoken.detach(model).generate(**given)
        ours = foretoken.attach(model, draft="lookup", pace="fixed").generate(**given)
        assert torch.equal(ours, theirs)
        assert ours.shape[1] < asked["input_ids"].shape[1] + 60


# -- streamers --------------------------------------------------------------------------------------------------------


class Stream:
    """Notes what it is given."""

    def __init__(self, *, fails: bool = False) -> None:
        self.put_in: list[Any] = []
        self.ends = 0
        self.fails = fails

    def put(self, value: torch.Tensor) -> None:
        self.put_in.append(value.tolist())
        if self.fails and len(self.put_in) == 3:
            raise RuntimeError("nobody listens")

    def end(self) -> None:
        self.ends += 1


def test_streamers_get_the_prompt_and_then_token_by_token() -> None:
    seen = []
    for make in (attached, model_of):
        stream = Stream()
        make().generate(**prompts(6), max_new_tokens=30, eos_token_id=None, streamer=stream)
        seen.append((stream.put_in, stream.ends))
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == 31


def test_a_streamer_is_ended_whatever_happens() -> None:
    stream = Stream(fails=True)
    with pytest.raises(RuntimeError, match="nobody listens"):
        attached().generate(**prompts(6), max_new_tokens=30, streamer=stream)
    assert stream.ends == 1
    stream = Stream()
    with pytest.raises(SettingError, match="num_beams"):
        attached().generate(**prompts(6), num_beams=2, streamer=stream)
    assert stream.ends == 1
    with pytest.raises(SettingError, match="a streamer takes one text, and here come 2"):
        attached().generate(**prompts(6, 4), max_new_tokens=3, streamer=Stream())


def test_a_streamer_is_ended_if_the_weights_have_changed() -> None:
    model, stream = attached(), Stream()
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    with pytest.raises(ModelError):
        model.generate(**prompts(6), max_new_tokens=3, streamer=stream)
    assert stream.ends == 1


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


def test_an_iterator_in_a_thread_gives_the_text() -> None:
    known = load("stdlib-1m", draft="none")
    tokenizer = transformers.AutoTokenizer.from_pretrained(known.folder)
    model = foretoken.attach(transformers.AutoModelForCausalLM.from_pretrained(known.folder), draft="lookup")
    asked = tokenizer("def add(self, other):", return_tensors="pt", return_token_type_ids=False)
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = Thread(target=model.generate, kwargs={**asked, "max_new_tokens": 40, "streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    (done,) = model.generate.completions
    assert "".join(pieces) == tokenizer.decode(done.tokens)
    assert len(pieces) > 3


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


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 3}, "foretoken has no beam search"),
        ({"num_beams": 3, "do_sample": True}, "foretoken has no beam sample"),
        ({"num_beams": 4, "num_beam_groups": 2}, "foretoken has no "),
        ({"penalty_alpha": 0.6, "top_k": 4}, "foretoken's generate has no penalty_alpha=0.6"),
        ({"dola_layers": "low"}, "foretoken's generate has no dola_layers='low'"),
        ({"use_mtp": True}, "foretoken's generate has no use_mtp=True"),
        ({"assistant_early_exit": 2}, "no assistant_early_exit=2; name the draft with foretoken"),
        ({"is_assistant": True}, "foretoken's generate has no is_assistant=True"),
        ({"cache_implementation": "paged"}, "foretoken's generate has no cache_implementation='paged'"),
        ({"labels": torch.zeros(1, 6)}, "has no labels; leave it out"),
        ({"is_causal": False}, "foretoken's generate has no is_causal=False"),
        ({"guidance_scale": 1.5}, "foretoken's generate has no guidance_scale=1.5"),
        (
            {"output_attentions": True, "return_dict_in_generate": True},
            "foretoken's generate has no output_attentions=True",
        ),
        (
            {"output_hidden_states": True, "return_dict_in_generate": True},
            "foretoken's generate has no output_hidden_states=True",
        ),
        ({"prompt_lookup_num_tokens": 4}, "draft='lookup' does that"),
        ({"token_healing": True}, "foretoken's generate has no token_healing=True"),
        ({"assistant_model": 1}, "no assistant_model=1; name the draft with foretoken"),
        ({"inputs_embeds": torch.zeros(1, 3, 32)}, "has no inputs_embeds; give input_ids"),
        ({"position_ids": torch.zeros(1, 6)}, "give attention_mask, with padding on the left"),
        ({"past_key_values": transformers.DynamicCache()}, "give the whole text"),
        ({"custom_generate": print}, "has no custom_generate; leave it out"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        attached().generate(**prompts(6), max_new_tokens=4, **asked)


def test_what_is_said_of_caches_changes_nothing() -> None:
    for asked in ({"cache_implementation": "static"}, {"use_cache": False}):
        ours, theirs = both(lambda model, asked=asked: model.generate(**prompts(6), max_new_tokens=9, **asked))
        assert torch.equal(ours, theirs)


def test_arguments_come_before_what_the_model_s_configuration_says() -> None:
    ours, theirs = both(
        lambda model: model.generate(**prompts(6), max_new_tokens=9, guidance_scale=1.0), guidance_scale=1.5
    )
    assert torch.equal(ours, theirs)
    with pytest.raises(
        SettingError, match=r"guidance_scale=1\.5; leave it out; it may stand in model\.generation_config"
    ):
        attached(guidance_scale=1.5).generate(**prompts(6), max_new_tokens=9)


def test_a_field_that_is_not_known_is_refused_and_so_is_a_model_whose_configuration_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fields, "KNOWN", fields.KNOWN - {"typical_p"})
    with pytest.raises(SettingError, match=r"typical_p=0\.5"):
        attached().generate(**prompts(6), max_new_tokens=4, do_sample=True, typical_p=0.5)
    with pytest.raises(SettingError, match=r"typical_p=0\.5"):
        attached(typical_p=0.5).generate(**prompts(6), max_new_tokens=4)
    with pytest.raises(SettingError, match=r"guidance_scale=3\.0"):
        attached().generate(**prompts(6), generation_config=GenerationConfig(guidance_scale=3.0, max_new_tokens=4))


def test_every_field_of_this_release_is_known() -> None:
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} <= fields.KNOWN


def test_a_release_that_generates_in_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached()
    monkeypatch.setattr(transformers.GenerationMixin, "generate", lambda self, inputs=None, **kwargs: inputs)
    with pytest.raises(UnsupportedModelError, match="generates in a way that is not known"):
        model.generate(prompts(6)["input_ids"], max_new_tokens=4)


def test_what_transformers_refuses_it_refuses() -> None:
    with pytest.raises(ValueError, match="model_kwargs"):
        attached().generate(**prompts(6), max_new_tokens=4, no_such_thing=1)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("def add(", "inputs is a str, expected token ids"),
        ({"input_ids": torch.tensor([[5]])}, "inputs is a dict, expected token ids"),
        (torch.tensor([5, 6]), r"inputs is a tensor of shape \[2\], expected token ids"),
        ([[5, 6]], "inputs is a list, expected token ids"),
    ],
    ids=str,
)
def test_a_prompt_that_is_no_batch_of_token_ids_is_refused(prompt: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        attached().generate(prompt, max_new_tokens=4)


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


def test_padding_on_the_right_is_refused() -> None:
    asked = prompts(6, 4)
    asked = {name: tensor.flip(1) for name, tensor in asked.items()}
    with pytest.raises(SettingError, match="pad on the left"):
        attached().generate(**asked, max_new_tokens=4)
