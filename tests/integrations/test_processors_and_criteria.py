"""Processors and criteria, transformers' own and others, are asked as transformers asks them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import foretoken
from foretoken.api.build import load
from foretoken.errors import NumericsError, SettingError
from tests.integrations.asking import Counting, Noting, Quiet, Stream
from tests.integrations.theirs import END, attached, both, model_of, prompts


def test_processors_and_criteria_are_asked_once_a_position_in_order() -> None:
    seen = []
    for make in (attached, model_of):
        order: list[tuple[str, int]] = []
        processor, criterion = Noting(order), Counting(order=order)
        model = make()
        asked: dict[str, Any] = {**prompts(6), "max_new_tokens": 40, "eos_token_id": None}
        text = model.generate(**asked, logits_processor=[processor], stopping_criteria=[criterion])
        seen.append((text.tolist(), processor.asked, criterion.asked, order))
    assert seen[0] == seen[1]
    assert len(seen[0][1]) == 40


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


def test_a_length_of_the_caller_s_own_comes_before_the_configuration_s() -> None:
    criteria = [transformers.MaxLengthCriteria(17)]
    with pytest.warns(UserWarning, match="model-agnostic default"):
        ours, theirs = both(lambda model: model.generate(**prompts(6), stopping_criteria=criteria, eos_token_id=None))
    assert torch.equal(ours, theirs)
    assert ours.shape[1] == 17


def test_texts_are_padded_even_if_no_token_of_the_model_ends_them() -> None:
    alone = model_of().generate(**prompts(6, 9, 4), max_new_tokens=40, eos_token_id=None)
    last = int(alone[0, 20])
    ours, theirs = both(
        lambda model: model.generate(
            **prompts(6, 9, 4), max_new_tokens=40, eos_token_id=-1, stopping_criteria=[Counting(last)]
        )
    )
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
