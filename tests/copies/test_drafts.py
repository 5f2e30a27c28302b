"""Low-bit copies of a model as its drafts, from `load` on: what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from foretoken.api.model import Model
from foretoken.formats import FORMATS
from foretoken.results.completion import Completion
from tests.copies.loaded import PROMPT, SAMPLED, copies, expect_equal, generate, in_pytorch, load, samplings
from tests.isas import HERE, with_isa
from tests.tiny import needs_native

DRAFTS = (
    *FORMATS,
    "mxfp4,lookup",
    "mxfp4:inputs=bf16",
    "mxfp4:own-cache",
    "int4:group=32:inputs=bf16:tokens=9",
    "int3:group=128:own-cache,lookup",
    "mxfp4:k=3:depth=4",
    "mxfp4:k=2,lookup",
    "int2:k=3:own-cache:least=0.2,lookup:tokens=3",
    "int2:k=2:depth=3:shape=rerank:own-cache",
    "int4,mxfp4,int2,lookup:tokens=3",
    "int8:own-cache,int2,lookup",
    "mxfp4,stdlib-1m,lookup",
    "int3-g32,stdlib-1m:format=mxfp4",
    "stdlib-1m:format=int3:group=32,lookup",
    "int4,int2,stdlib-1m:format=mxfp4:inputs=bf16",
)


@pytest.mark.sampled(3)
@samplings
@pytest.mark.parametrize("draft", DRAFTS)
def test_a_copy_drafts_what_plain_decoding_says(draft: str, sampling: dict[str, Any]) -> None:
    done = generate(load(draft), **sampling)
    expect_equal(done, generate(load("none"), **sampling))
    assert done.stats.accepted_tokens > 0
    assert set(done.origins) >= {"target", load(draft).levels[0]}


@samplings
def test_a_copy_of_the_larger_model_does_too(sampling: dict[str, Any]) -> None:
    plain = generate(load("none", "stdlib-7m"), **sampling)
    for draft in ("mxfp4,lookup", "int2:own-cache", "int4,stdlib-1m:format=mxfp4,lookup"):
        done = generate(load(draft, "stdlib-7m"), **sampling)
        expect_equal(done, plain)
        assert done.stats.accepted_tokens > 5


def test_the_levels_of_a_ladder_of_copies_all_draft() -> None:
    done = generate(load("int4,int2,lookup", "stdlib-7m"))
    assert set(done.origins) == {"target", "int4", "int2", "lookup"}


@pytest.mark.sampled(4)
@samplings
@pytest.mark.parametrize("settings", [{"weights": "copied"}, {"dtype": "float32"}, {"dtype": "float16"}], ids=str)
@pytest.mark.parametrize("draft", ["mxfp4,lookup", "int3:k=2:depth=4", "int4:own-cache,int2"])
def test_it_does_whatever_type_the_weights_have_and_wherever_they_lie(
    draft: str, settings: dict[str, Any], sampling: dict[str, Any]
) -> None:
    done = generate(load(draft, **settings), **sampling)
    expect_equal(done, generate(load("none", **settings), **sampling))
    assert done.stats.accepted_tokens > 0


@needs_native
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize(
    ("threads", "weights"),
    [
        (1, "mapped"),
        (2, "copied"),
        *(pytest.param(*x, marks=pytest.mark.prove) for x in ((1, "copied"), (2, "mapped"))),
    ],
)
def test_it_does_at_every_level_with_any_number_of_threads(level: str, threads: int, weights: str) -> None:
    expected = generate(load("none"))
    with with_isa(level):
        model = load("mxfp4,int2,lookup", threads=threads, weights=weights)
        assert model.target.arithmetic == copies(model)[1].model.arithmetic == f"native {level}"
        expect_equal(generate(model), expected)


@samplings
def test_it_does_in_pytorch(monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any]) -> None:
    with in_pytorch(monkeypatch):
        plain = generate(load("none"), **sampling)
        for draft in ("mxfp4,lookup", "int2:own-cache", "int4:k=2:depth=3"):
            model = load(draft)
            assert model.target.arithmetic == copies(model)[0].model.arithmetic == "pytorch"
            done = generate(model, **sampling)
            expect_equal(done, plain)
            assert done.stats.accepted_tokens > 0


@pytest.mark.parametrize("draft", ["mxfp4,lookup", "int4:own-cache", "int2:k=2:depth=3"])
def test_several_completions_are_those_of_plain_decoding(draft: str) -> None:
    def several(model: Model) -> list[Completion]:
        return model.completions(PROMPT, n=3, max_new_tokens=24, hash_logits=True, **SAMPLED)

    drafted, plain = several(load(draft)), several(load("none"))
    assert len({done.tokens for done in plain}) == 3
    for one, other in zip(drafted, plain, strict=True):
        expect_equal(one, other)
    assert sum(done.stats.accepted_tokens for done in drafted) > 0


@pytest.mark.parametrize("draft", ["mxfp4,lookup", "mxfp4,int2", "int3:own-cache,lookup"])
def test_a_talk_is_that_of_plain_decoding(draft: str) -> None:
    def talk(model: Model) -> list[Completion]:
        chat, turns = model.chat(plain=True), []
        for said in ("def add(a, b):", "\n\ndef sub(a, b):", "\n\nclass Stack:\n    def push("):
            stream = chat.send(said, max_new_tokens=16, hash_logits=True)
            for _ in stream:
                pass
            turns.append(stream.completion)
        return turns

    drafted, plain = talk(load(draft)), talk(load("none"))
    for one, other in zip(drafted, plain, strict=True):
        expect_equal(one, other)
    assert sum(done.stats.accepted_tokens for done in drafted) > 0


def test_an_audit_of_a_copy_s_drafts_finds_nothing() -> None:
    done = load("mxfp4,lookup").generate(PROMPT, max_new_tokens=24, audit=True, **SAMPLED)
    assert done.audit is not None
    assert done.audit.identical


def test_under_the_rejection_rule_a_copy_is_judged_by_its_own_distribution() -> None:
    for draft in ("mxfp4", "int4:k=2:shape=full", "mxfp4,int2"):
        model = load(draft, rule="rejection")
        expect_tokens = generate(load("none")).tokens
        assert generate(model).tokens == expect_tokens  # greedily
        done = generate(model, **SAMPLED)
        assert done.promise == "algorithmic"
        assert done.stats.accepted_tokens > 0
