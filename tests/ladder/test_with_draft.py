"""Another draft for a model that is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api import build, checkpoint, levels
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.drafters.reading import DecoderDrafter
from foretoken.errors import DraftSpecError, SettingError
from foretoken.protocol.types import Request
from foretoken.results.completion import Completion
from foretoken.sampling.sampler import Sampler
from foretoken.sampling.samplers import Samplers

PROMPT = "def read(self, size=-1):\n    "
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 3}


@pytest.fixture(scope="module")
def plain() -> Model:
    return foretoken.load("stdlib-7m", draft="none", prefill_chunk=7, weights="copied", pace="fixed")


def generate(model: Model, **settings: Any) -> Completion:
    return model.generate(PROMPT, max_new_tokens=32, hash_logits=True, **settings)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "draft",
    [
        "none",
        "lookup",
        "stdlib-1m:k=2:depth=3",
        "int4,lookup",
        "int2:own-layers=0+1",
        "mxfp4:own-head:inputs=fp32",
        "mxfp4:own-cache,stdlib-1m,lookup:tokens=3",
    ],
)
def test_it_generates_what_a_model_loaded_with_that_draft_does(
    plain: Model, draft: str, sampling: dict[str, Any]
) -> None:
    model = with_draft(plain, draft)
    fresh = foretoken.load("stdlib-7m", draft=draft, prefill_chunk=7, weights="copied", pace="fixed")
    done, expected = generate(model, **sampling), generate(fresh, **sampling)
    assert (done.tokens, done.logits_sha256) == (expected.tokens, expected.logits_sha256)
    assert done.origins == expected.origins
    assert done.stats.accepted_per_position == expected.stats.accepted_per_position
    assert [level.name for level in done.stats.levels] == [level.name for level in expected.stats.levels]
    assert (done.stats.accepted_tokens > 0) == (draft != "none")
    assert model.settings == fresh.settings
    assert (model.levels, model.num_speculative_tokens) == (fresh.levels, fresh.num_speculative_tokens)
    assert (model.end_tokens, model.name, model.folder) == (fresh.end_tokens, fresh.name, fresh.folder)
    assert (model.draft, repr(model)) == (fresh.draft, repr(fresh))


def test_weights_and_tokenizer_are_shared_and_all_else_is_its_own(plain: Model) -> None:
    one, other = with_draft(plain, "int4"), with_draft(plain, "lookup")
    assert one.target is other.target is plain.target
    assert one.tokenizer is other.tokenizer is plain.tokenizer
    assert len({id(model._verifier) for model in (plain, one, other)}) == 3
    drafter = one.drafter
    assert isinstance(drafter, DecoderDrafter)
    assert drafter.model.weights.embedding.data_ptr() == plain.target.weights.embedding.data_ptr()
    alone = generate(one)
    streams = [model.stream(PROMPT, max_new_tokens=32) for model in (plain, one, other)]
    for _ in zip(*streams, strict=False):  # in turn
        pass
    for stream in streams:
        for _ in stream:
            pass
        assert stream.completion.tokens == alone.tokens
    assert plain.levels == ()
    assert plain.settings.draft == plain.draft == "none"


def test_what_was_loaded_for_another_draft_is_not_loaded_again(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    really = levels.load_level

    def load_level(level: Any, *given: Any) -> Any:
        made.append(level.called)
        return really(level, *given)

    monkeypatch.setattr(build, "load_level", load_level)
    loaded = levels.Loaded()
    drafts = ("int4", "int4,lookup", "int4:inputs=bf16", "int4,int4,lookup")
    one, laddered, *others = (with_draft(plain, draft, loaded=loaded) for draft in drafts)
    assert made == ["int4", "int4", "int4-2"]
    assert isinstance(one.drafter, DecoderDrafter)
    assert isinstance(laddered.drafter, DecoderDrafter)
    assert one.drafter.model is laddered.drafter.model
    assert len({generate(model).tokens for model in (plain, one, laddered, *others)}) == 1


def test_its_levels_and_the_number_of_its_draft_tokens_are_told(plain: Model) -> None:
    model = with_draft(plain, "int4,stdlib-1m,lookup", num_speculative_tokens=3)
    assert model.levels == ("int4", "stdlib-1m", "lookup")
    assert model.num_speculative_tokens == model.settings.num_speculative_tokens == 3
    done = generate(model)
    assert [level.name for level in done.stats.levels] == ["int4", "stdlib-1m", "lookup"]
    assert len(done.stats.accepted_per_position) == 3
    assert with_draft(model, "lookup").num_speculative_tokens == 8, "the number belongs to the draft"
    assert with_draft(model, "lookup").settings == replace(plain.settings, draft="lookup")


def test_a_wrong_draft_is_refused_before_anything_is_loaded(
    plain: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(checkpoint, "load_weights", never)
    for draft, tokens, error, message in (
        ("lookup+mxfp4", None, DraftSpecError, "there is no draft 'lookup+mxfp4'; levels have commas"),
        ("auto:k=2", None, DraftSpecError, "draft 'auto' has no options, and stands alone"),
        ("lokup", None, DraftSpecError, "there is no draft 'lokup'; did you mean 'lookup'?"),
        ("stdlib-1m,lokup", None, DraftSpecError, "there is no draft 'lokup'; did you mean 'lookup'?"),
        ("int4:tokens=3", 4, DraftSpecError, "draft 'int4:tokens=3' asks for 3 tokens, num_speculative_tokens for 4"),
        (
            "stdlib-1m,int4",
            None,
            DraftSpecError,
            "draft 'int4' is a copy of the model, and would draft for 'stdlib-1m'",
        ),
        ("stdlib-1m,stdlib-1m:own-cache", None, DraftSpecError, "draft 'stdlib-1m' is no copy of the model"),
        ("stdlib-1m:own-layers=0", None, DraftSpecError, "draft 'stdlib-1m' is no copy of the model"),
        ("int4:own-layers=1+0", None, DraftSpecError, "draft 'int4': own-layers is 1+0, expected numbers from 0 to "),
        ("int4:own-layers=0,1", None, DraftSpecError, "there is no draft '1' (known: "),
        ("int4:own-layers=0+1+2+3", None, DraftSpecError, "draft 'int4': own-layers names all 4 layers of the model"),
        ("int4:own-layers=99", None, DraftSpecError, "draft 'int4': own-layers is 99, expected numbers from 0 to "),
        ("stdlib-1m:own-head", None, DraftSpecError, "draft 'stdlib-1m' is no copy of the model"),
        ("int4:own-head=1", None, DraftSpecError, "draft 'int4': own-head takes no value; leave '1' out"),
        (
            "int4:inputs=fp32",
            None,
            DraftSpecError,
            "draft 'int4' is in int4-g64, and only mxfp4 is multiplied",
        ),
        ("stdlib-1m:format=int8:inputs=fp32", None, DraftSpecError, "draft 'stdlib-1m' is in int8, and only mxfp4 is"),
        ("lookup", 0, SettingError, "num_speculative_tokens is 0, expected"),
    ):
        with pytest.raises(error) as caught:
            with_draft(plain, draft, num_speculative_tokens=tokens)
        assert str(caught.value).startswith(message)


class Counting(Samplers):
    """Makes samplers, and counts them."""

    made = 0

    def target(self, request: Request) -> Sampler:
        self.made += 1
        return super().target(request)


def test_a_draft_guesses_with_other_samplers_where_they_are_given(plain: Model) -> None:
    counting = Counting(plain.tokenizer)
    done = generate(with_draft(plain, "stdlib-1m", samplers=counting), **SAMPLED)
    assert counting.made == 1, "the draft's, and none of the target's"
    assert done.tokens == generate(plain, **SAMPLED).tokens
