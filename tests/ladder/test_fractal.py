"""What a fractal draft names: its options, what they leave open, and what is refused of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.drafters.fractal import FractalDrafter
from foretoken.drafters.fractal_published import PublishedFractalDrafter
from foretoken.drafters.fractal_recipe import embedded
from foretoken.drafters.ladder import name_levels
from foretoken.drafters.recipe import Level
from foretoken.drafters.slots import SLOTS
from foretoken.drafters.table import FRACTAL
from foretoken.errors import DraftSpecError
from foretoken.formats import FORMATS
from foretoken.kernels import native
from foretoken.settings.load import MOST_DRAFT_TOKENS, LoadSettings


def level(spec: str, num_layers: int = 12, num_speculative_tokens: int | None = None) -> Level:
    """As it is once the model's layers are known."""
    (named,) = name_levels(LoadSettings(draft=spec, num_speculative_tokens=num_speculative_tokens))
    return embedded(named, num_layers)


def places(spec: str, num_layers: int) -> tuple[tuple[int, ...], int, int]:
    """Layers, window, and most tokens of a draft."""
    found = level(spec, num_layers)
    return found.options["layers"], found.options["w"], found.tokens


@pytest.mark.parametrize(
    ("spec", "num_layers", "expected"),
    [
        ("fractal", 32, ((3, 7, 11, 15, 19, 23, 27, 31), 8, 17)),  # FractalLLM, appendix D
        ("fractal", 28, ((3, 7, 11, 15, 19, 23, 27), 7, 15)),
        ("fractal", 40, ((3, 7, 11, 15, 19, 23, 27, 31, 35, 39), 10, 21)),
        ("fractal", 2, ((1,), 1, 3)),
        ("fractal", 1, ((0,), 1, 3)),
        ("fractal:n=2", 12, ((5, 11), 2, 5)),
        ("fractal:n=5:w=1", 12, ((1, 3, 6, 8, 11), 1, 7)),
        ("fractal:n=3", 3, ((0, 1, 2), 3, 7)),
        ("fractal:w=9", 4, ((3,), 9, 11)),
        ("fractal:layers=0+7", 12, ((0, 7), 2, 5)),
        ("fractal:layers=11:w=4", 12, ((11,), 4, 6)),
        ("fractal:layers=2+4+6:n=3", 12, ((2, 4, 6), 3, 7)),
    ],
)
def test_what_is_left_open_is_as_in_the_paper(spec: str, num_layers: int, expected: Any) -> None:
    assert places(spec, num_layers) == expected


@pytest.mark.parametrize("num_layers", range(1, 41))
def test_layers_that_are_evenly_spaced_are_there_and_end_with_the_last(num_layers: int) -> None:
    for n in range(1, num_layers + 1):
        layers = places(f"fractal:n={n}", num_layers)[0]
        assert len(layers) == n
        assert list(layers) == sorted(set(layers))
        assert layers[0] >= 0
        assert layers[-1] == num_layers - 1


def test_a_fractal_level_is_a_copy_of_the_model_in_int8_or_as_it_says() -> None:
    for name in FORMATS:
        named = level(f"fractal:format={name}:inputs=bf16:slots=fixed")
        assert (named.entry, named.format, named.called) == (FRACTAL, FORMATS[name], "fractal")
        assert named.is_copy
        assert named.has_decoder
    assert level("fractal").format == FORMATS["int8"]
    found = level("fractal:format=int4:group=128").format
    assert found is not None
    assert found.label == "int4-g128"
    assert FRACTAL.options["slots"] == tuple(SLOTS)


@pytest.mark.parametrize(("asked", "tokens"), [(None, 7), (1, 1), (3, 3), (7, 7), (9, 7), (MOST_DRAFT_TOKENS, 7)])
def test_a_limit_on_draft_tokens_caps_a_draft_and_never_lengthens_it(asked: int | None, tokens: int) -> None:
    assert level("fractal:n=3", 12, asked).tokens == tokens


REFUSED = [
    ("fractal:n=13", "draft 'fractal': n is 13, and the model has 12 layers; give at most 12"),
    ("fractal:layers=12", "draft 'fractal': layers is 12, expected numbers from 0 to 11, ascending"),
    ("fractal:layers=3+12", "draft 'fractal': layers is 3+12, expected numbers from 0 to 11, ascending"),
    ("fractal:layers=3+1", "draft 'fractal': layers is 3+1, expected numbers from 0 to 11, ascending"),
    ("fractal:layers=3+3", "draft 'fractal': layers is 3+3, expected numbers from 0 to 11, ascending"),
    ("fractal:layers=3+4:n=3", "draft 'fractal': n is 3, and layers names 2; leave one of them out"),
    ("fractal:n=1:w=4095", "draft 'fractal' is to draft 4097 tokens a round, expected at most 4096"),
    ("fractal:w=0", "draft 'fractal': w is '0', expected a whole number, 1 to 9999"),
    ("fractal:n=0", "draft 'fractal': n is '0', expected a whole number, 1 to 9999"),
    ("fractal:n=x", "draft 'fractal': n is 'x', expected a whole number, 1 to 9999"),
    (
        "fractal:layers=1,2",
        "there is no draft '2'",
    ),
    (
        "fractal:layers=1-2",
        "draft 'fractal': layers is '1-2', expected whole numbers with + between them, such as 2+4+6",
    ),
    ("fractal:layers=1+", "draft 'fractal': layers is '1+', expected whole numbers with + between them"),
    ("fractal:layers", "draft 'fractal': 'layers' has no value; expected layers=..."),
    ("fractal:slots=random", "draft 'fractal': slots is 'random' (known: fixed, lookup, recycle)"),
    ("fractal:format=fp8", "draft 'fractal': format is 'fp8'"),
    ("fractal:group=32", "draft 'fractal': int8 has one scale an output, and no groups; leave group out"),
    ("fractal:inputs=fp32", "draft 'fractal': inputs is 'fp32' (known: bf16, fastest, int8)"),
    ("fractal:own-cache", "draft 'fractal' has no option 'own-cache'"),
    ("fractal:tokens=4", "draft 'fractal' has no option 'tokens'"),
    ("fractal:k=2", "draft 'fractal' has no option 'k'"),
    ("fractl", "there is no draft 'fractl'; did you mean 'fractal'?"),
    (
        "fractal,lookup",
        "draft 'fractal,lookup': 'fractal' guesses all its tokens at once and cannot be sped up by 'lookup'; "
        "slots=lookup starts from what lookup finds",
    ),
    (
        "fractal,mxfp4",
        "draft 'fractal,mxfp4': 'fractal' guesses all its tokens at once and cannot be sped up by 'mxfp4'",
    ),
    (
        "mxfp4,fractal",
        "draft 'mxfp4,fractal': 'fractal' runs in the model's own layers, so it drafts for the model alone; leave "
        "'mxfp4' out",
    ),
    ("lookup,fractal", "draft 'lookup,fractal': 'fractal' runs in the model's own layers"),
    ("fractal,fractal", "draft 'fractal,fractal': 'fractal' runs in the model's own layers"),
    ("fractal,none", "draft 'fractal,none': 'none' speeds nothing up; leave it out"),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(spec: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        level(spec)
    assert str(error.value).startswith(message)


def test_what_the_model_has_not_is_refused_before_its_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretoken.api.checkpoint.load_weights", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(DraftSpecError, match="n is 3, and the model has 2 layers; give at most 2"):
        foretoken.load("stdlib-1m", draft="fractal:n=3", pace="fixed")


@cache
def plain() -> Model:
    return foretoken.load("stdlib-1m", draft="none", threads=1)


def drafter_of(spec: str, model: Model | None = None) -> FractalDrafter:
    drafter = with_draft(plain() if model is None else model, spec).drafter
    assert isinstance(drafter, FractalDrafter)
    return drafter


def test_the_options_reach_the_drafter() -> None:
    drafter = drafter_of("fractal:layers=0+1:w=4:slots=fixed:format=int2")
    assert (drafter.layers, drafter.window, drafter.slots) == ((0, 1), 4, "fixed")
    assert not isinstance(drafter, PublishedFractalDrafter)
    assert drafter.target is plain().target
    assert drafter.model is not drafter.target
    assert drafter.model.weights.nbytes < drafter_of("fractal:format=int8").model.weights.nbytes
    assert drafter.model.weights.embedding.data_ptr() == plain().target.weights.embedding.data_ptr()
    assert drafter.name == "fractal"


def test_without_a_cache_and_for_the_rejection_rule_it_is_patient() -> None:
    uncached = foretoken.load("stdlib-1m", draft="none", threads=1, cache=False)
    assert isinstance(drafter_of("fractal", uncached), PublishedFractalDrafter)
    judged = foretoken.load("stdlib-1m", draft="fractal", threads=1, rule="rejection")
    assert isinstance(judged.drafter, FractalDrafter)
    assert isinstance(judged.drafter, PublishedFractalDrafter)
    assert judged.drafter.independent


@pytest.mark.parametrize("tokens", [None, 1, 2, 4, 8])
def test_a_fractal_draft_of_an_embedded_model_says_what_plain_decoding_says(tokens: int | None) -> None:
    prompt = "for i in range(3):\n    print(i)\nfor i in range(3):"
    settings = {"max_new_tokens": 40 if native.module() else 12, "ignore_eos": True}
    expected = foretoken.load("stdlib-7m", draft="none").generate(prompt, **settings)
    drafting = foretoken.load("stdlib-7m", draft="fractal:w=12", num_speculative_tokens=tokens, pace="fixed")
    done = drafting.generate(prompt, **settings, keep_rounds=True)
    assert done.tokens == expected.tokens
    assert (done.stats.accepted_tokens > 0) == (tokens != 1), "one token alone is not worth a pass"
    assert set(done.origins) == ({"target"} if tokens == 1 else {"target", "fractal"})
    assert done.rounds is not None
    longest = max(sum(record.drafted.values()) for record in done.rounds)
    assert longest <= drafting.num_speculative_tokens == (12 + 1 + 1 if tokens is None else tokens)
