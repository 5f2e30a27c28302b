"""Drafts over long texts, which read old keys and values in int8: the same tokens, and the same logits bit for bit."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.api.build import plan, with_draft
from foretoken.api.model import Model
from foretoken.decoder import native_pass
from foretoken.errors import DraftSpecError
from foretoken.formats.table import PLACES
from foretoken.kernels import native
from tests.copies.loaded import copies
from tests.tiny import needs_native

SAMPLING: list[dict[str, Any]] = [{}, {"temperature": 0.8, "seed": 3}]
DRAFTS = (
    "mxfp4",
    "mxfp4,lookup",
    "int4,int2,lookup",
    "int8:kv=int8",
    "int4:k=2:depth=3",
    "fractal:format=int4:n=2:w=3",
)
LONG = 2 * PLACES + 100  # tokens


@cache
def model(draft: str) -> Model:
    if draft == "none":
        return foretoken.load("stdlib-1m", draft=draft, threads=1, pace="fixed")
    return with_draft(model("none"), draft)


def text() -> list[int]:
    source = (Path(sysconfig.get_paths()["stdlib"]) / "textwrap.py").read_text(encoding="utf-8")
    tokenizer = model("none").tokenizer
    assert tokenizer is not None
    return list(tokenizer.encode(source))


@pytest.fixture
def coded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The layers of each block that a draft codes."""
    seen: list[int] = []
    really = native.code_places

    def code_places(keys: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        seen.append(len(keys))
        return really(keys, *given, **named)

    monkeypatch.setattr(native_pass.native, "code_places", code_places)
    return seen


@needs_native
@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_tokens_and_logits_are_those_of_plain_decoding(draft: str, sampling: dict[str, Any], coded: list[int]) -> None:
    settings = {"max_new_tokens": 40, "ignore_eos": True, "keep_logits": True, **sampling}
    prompt = text()[:LONG]
    expected = model("none").generate(prompt, **settings)
    assert not coded
    done = with_draft(model("none"), draft).generate(prompt, **settings)
    assert done.tokens == expected.tokens
    assert done.logits is not None
    assert expected.logits is not None
    assert torch.equal(done.logits, expected.logits)
    assert 0 < done.stats.accepted_tokens <= done.stats.draft_tokens
    # a copy of eight bits may be right throughout
    assert done.stats.accepted_tokens < done.stats.draft_tokens or draft.startswith("int8")
    assert coded == [model("none").target.config.num_layers] * (LONG // PLACES), "each block once"


@needs_native
def test_texts_side_by_side_and_several_completions_of_one(coded: list[int]) -> None:
    prompts = [text()[at : at + length] for at, length in ((0, 300), (50, 620), (9, 255))]
    its = with_draft(model("none"), "mxfp4,lookup")
    settings: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    expected = [model("none").generate(prompt, **settings).tokens for prompt in prompts]
    assert [done.tokens for done in its.generate_many(prompts, **settings)] == expected
    assert len(coded) == 1 + 2 + 1  # the last text grows beyond a block
    sampled = {**settings, "n": 3, "temperature": 0.8, "seed": 5}
    plain = [done.tokens for done in model("none").completions(prompts[1], **sampled)]
    assert [done.tokens for done in its.completions(prompts[1], **sampled)] == plain


@needs_native
def test_a_conversation_codes_each_block_once(coded: list[int]) -> None:
    tokenizer = model("none").tokenizer
    assert tokenizer is not None
    chats = [its.chat(plain=True) for its in (model("none"), with_draft(model("none"), "mxfp4,lookup"))]
    for at, length in ((0, 560), (600, 300)):
        replies = []
        for chat in chats:
            stream = chat.send(tokenizer.decode(text()[at : at + length]), max_new_tokens=8, ignore_eos=True)
            replies.append("".join(piece.text for piece in stream))
        assert replies[0] == replies[1] != ""
    prompt = chats[1].prompt
    assert prompt is not None
    assert len(coded) == (len(prompt) + 7) // PLACES == 3


@needs_native
def test_copies_of_few_bits_read_int8_unless_they_are_told_not_to() -> None:
    for draft, expected in (
        ("mxfp4", [True]),
        ("mxfp4:kv=full", [False]),
        ("int4,int2:kv=full,lookup", [True, False]),
        ("int8", [False]),
        ("int8:kv=int8", [True]),
        ("int4:own-cache", [False]),
        ("stdlib-1m:format=int4", [False]),
        ("fractal", [False]),
        ("fractal:format=int4", [True]),
    ):
        its = with_draft(model("none"), draft)
        assert [drafter.model.codes_places for drafter in copies(its)] == expected, draft
    assert not model("none").target.codes_places


@needs_native
@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("mxfp4:kv=int4", "draft 'mxfp4': kv is 'int4'"),
        ("mxfp4:own-cache:kv=int8", "draft 'mxfp4': 'kv' says how a copy reads the model's keys and values, and with"),
        ("stdlib-1m:kv=int8", "draft 'stdlib-1m' is no copy of the model, and has keys and values of its own; leave"),
        ("lookup:kv=int8", "draft 'lookup' has no option 'kv'"),
    ],
)
def test_what_makes_no_sense_is_refused(draft: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        with_draft(model("none"), draft)
    assert str(error.value).startswith(message)


@needs_native
def test_int8_that_is_asked_for_and_cannot_be_is_refused() -> None:
    for settings, why in (
        ({"memory": "100GiB"}, "with a bound of memory no copy reads int8"),
        ({"cache": False}, "no keys and values are kept without a cache"),
    ):
        with pytest.raises(DraftSpecError, match=f"draft 'mxfp4': kv is int8, but {why}; leave kv out"):
            foretoken.load("stdlib-7m", draft="mxfp4:kv=int8,lookup", **settings)
    with pytest.raises(DraftSpecError, match="with a bound of memory no copy reads int8"):
        plan("stdlib-7m", draft="mxfp4:kv=int8", memory="100GiB")
