"""What else users do with a model of which layers are read in each pass: audits, several texts, talks and records. All
of it works with the model that is loaded, and says what the model in memory says."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.api.build import plan
from foretoken.api.chat import Chat
from foretoken.decoder.decoder import Decoder
from foretoken.errors import SettingError, TranscriptError
from foretoken.results.completion import Audit
from foretoken.transcript.verify import Verification
from tests.cli.conftest import Cli, cli
from tests.offload.faulty import PROMPT, large
from tests.tiny import needs_native

__all__ = ["cli", "large"]

SAMPLED = {"temperature": 0.8, "seed": 5}
COUNT = 16
Load = Callable[..., foretoken.Model]


@pytest.fixture
def load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a model of which layers are read: all those of a small one, or as many as must be."""
    monkeypatch.setattr("foretoken.api.offloading.memory_in_use", lambda: 300 << 20)  # and not that of all tests before
    if request.param == "all layers":
        return lambda draft: foretoken.load("stdlib-7m", draft=draft, stream_layers="all")
    folder: Path = request.getfixturevalue("large")

    def bounded(draft: str) -> foretoken.Model:
        everything = plan(folder, draft=draft, memory="100GiB", context=256)[0].plan.total
        model = foretoken.load(folder, draft=draft, memory=everything - 40_000_000, context=256)
        assert model.target.home == "copied and streamed"
        return model

    return bounded


def in_memory(model: foretoken.Model) -> foretoken.Model:
    return foretoken.load(model.folder, draft="none")


DRAFTS = pytest.mark.parametrize(
    ("load", "draft"),
    [
        ("all layers", "none"),
        pytest.param("a bound", "subspec,lookup", marks=needs_native),  # without it the load is refused
        pytest.param("all layers", "subspec,lookup", marks=pytest.mark.prove),
        pytest.param("a bound", "none", marks=pytest.mark.prove),
    ],
    indirect=["load"],
)


@DRAFTS
def test_audits_need_no_second_load_and_no_second_cache(
    draft: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(draft)
    new, made, most = Decoder.new_cache, weakref.WeakSet[Any](), [0]

    def new_cache(decoder: Decoder, *args: Any) -> Any:
        made.add(cache := new(decoder, *args))
        gc.collect()
        most[0] = max(most[0], len(made))
        return cache

    monkeypatch.setattr(Decoder, "new_cache", new_cache)
    monkeypatch.setattr("foretoken.api.build.load", lambda *args, **settings: pytest.fail("it is loaded again"))
    for sampling in ({}, SAMPLED):
        done = model.generate(PROMPT, max_new_tokens=COUNT, audit=True, ignore_eos=True, **sampling)
        assert done.audit == Audit(True, COUNT)
        assert (done.stats.accepted_tokens > 0) == (draft != "none")
    assert most[0] == 1, "the keys and values of the generation are gone when the audit begins"


@pytest.mark.prove
@DRAFTS
def test_several_texts_are_those_of_the_model_in_memory(draft: str, load: Load) -> None:
    model = load(draft)
    plain = in_memory(model)
    settings: dict[str, Any] = {"max_new_tokens": COUNT, "ignore_eos": True, "hash_logits": True, "audit": True}
    both = [each.completions(PROMPT, n=3, **SAMPLED, **settings) for each in (model, plain)]
    assert len({done.tokens for done in both[0]}) > 1
    prompts = [PROMPT, "import os\n", "def add(", "class Stack:"]
    for done, its in zip(*both, strict=True):
        assert (done.tokens, done.logits_sha256, done.audit) == (its.tokens, its.logits_sha256, Audit(True, COUNT))
    many = [each.generate_many(prompts, at_once=3, **settings) for each in (model, plain)]
    for done, its in zip(*many, strict=True):
        assert (done.tokens, done.logits_sha256, done.audit) == (its.tokens, its.logits_sha256, Audit(True, COUNT))


def said_in(talk: Chat, text: str) -> foretoken.Completion:
    stream = talk.send(text, max_new_tokens=COUNT, ignore_eos=True, audit=True)
    assert len(list(stream)) == COUNT
    return stream.completion


@DRAFTS
def test_talks_go_on_and_are_audited(draft: str, load: Load) -> None:
    model = load(draft)
    talks = [each.chat(plain=True) for each in (model, in_memory(model))]
    for said in ("def f(x):", "class A:", "import os"):
        done, its = (said_in(talk, said) for talk in talks)
        assert done.audit == Audit(True, COUNT)
        assert done.tokens == its.tokens
    assert done.cached_tokens > 0, "it has not read all again"


@pytest.mark.prove
@DRAFTS
def test_records_are_proved_with_and_without_a_bound(draft: str, load: Load, tmp_path: Path) -> None:
    model, path = load(draft), tmp_path / "record.json"
    done = foretoken.record(path, model, PROMPT, max_new_tokens=COUNT, ignore_eos=True, **SAMPLED)
    assert len(done.tokens) == COUNT
    bound = model.settings.memory or "8GiB"
    for options in ({}, {"draft": "none"}, {"memory": bound}, {"memory": bound, "draft": "lookup"}):
        assert foretoken.verify(path, **options) == Verification(True, COUNT)


def test_a_record_of_a_text_that_filled_the_context_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for settings in ({"context": 40}, {"context": 40, "stream_layers": "all"}, {"context": 40, "memory": "8GiB"}):
        model = foretoken.load("stdlib-1m", draft="none", **settings)
        done = foretoken.record(path, model, PROMPT, max_new_tokens=100, ignore_eos=True)
        assert done.prompt_tokens + len(done.tokens) == 40
        for memory in (None, "8GiB"):
            assert foretoken.verify(path, memory=memory) == Verification(True, len(done.tokens))
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["settings"].pop("context") == 40
    path.write_text(json.dumps(told), encoding="utf-8")
    found = foretoken.verify(path)  # as records of before tell nothing of it
    assert found.difference == f"the record ends after {len(done.tokens)} tokens, and generation goes on here"


def test_what_cannot_be_proved_under_a_bound_is_told(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    model = foretoken.load("stdlib-1m", draft="none", dtype="float32", cache=False)
    foretoken.record(path, model, PROMPT, max_new_tokens=4)
    assert foretoken.verify(path).verified
    with pytest.raises(TranscriptError, match="is of weights as float32, and under a bound of memory they are bf"):
        foretoken.verify(path, memory="8GiB")
    with pytest.raises(SettingError, match=r"needs .* at least .*; allow that much"):
        foretoken.verify(path, memory="1MB")


def test_the_command_line_does_all_of_it(cli: Cli, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ("--stream-layers", "all", "--verify-weights", "--max-new-tokens", COUNT, "--ignore-eos")
    ran = cli("generate", PROMPT, *options, "--audit", "--record", record)
    assert ran.code == 0
    assert f"audit: identical, {COUNT} tokens" in ran.err
    assert "no published hash is known for model.safetensors" in ran.err
    ran = cli("verify", record, "--memory", "8GiB")
    assert (ran.code, ran.out) == (0, f"verified: {COUNT} tokens and their logits, bit for bit\n")
    ran = cli("generate", PROMPT, *options, "--audit", "--n", 2, "--temperature", 0.8, "--seed", 3)
    assert ran.code == 0
    assert ran.err.count(f"audit: identical, {COUNT} tokens") == 2
