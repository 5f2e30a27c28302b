"""A trained drafter, as a user meets it: it drafts, and is refused where it cannot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.bench.suites import open_suite
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder.cache import Cache
from foretoken.decoder.config import read_config
from foretoken.drafters.mixture import MixtureDrafter
from foretoken.errors import CheckpointError, DraftSpecError, InputError
from foretoken.protocol.telemetry import Cost, Work
from foretoken.protocol.types import Features
from foretoken.trained.files import is_trained, read_trained, write_trained
from foretoken.trained.network import Mixture
from foretoken.trained.observer import FEATURE, ObservingLayers
from foretoken.trained.sizes import mixture_for

TARGET = "stdlib-1m"
PROMPT = "def add(one, other):\n    return one +"


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with random weights for the small embedded model."""
    folder, place = tmp_path_factory.mktemp("drafters") / "mixture", EMBEDDED[TARGET]
    config = read_config(place)
    torch.manual_seed(0)
    its = mixture_for(config, fingerprint(place, config))
    write_trained(folder, its, Mixture(its, config.norm_eps).state_dict(), accepted=[0.5, 0.25])
    return folder


@pytest.fixture(scope="module")
def plain() -> tuple[int, ...]:
    return foretoken.load(TARGET, draft="none").generate(PROMPT, max_new_tokens=24, ignore_eos=True).tokens


@pytest.mark.parametrize(
    "options",
    [
        "",
        ":tokens=3",
        ":format=mxfp4",
        ":format=int8:inputs=bf16",
        ":confidence=0.1",
        ":k=3:depth=4",
        ":k=2:shape=best-first",
    ],
)
@pytest.mark.parametrize("below", ["", ",lookup"])
def test_a_trained_drafter_changes_no_token(drafter: Path, plain: tuple[int, ...], options: str, below: str) -> None:
    if below and "depth" in options:
        pytest.skip("a beam has nothing below it")
    done = foretoken.load(TARGET, draft=f"{drafter}{options}{below}", pace="fixed").generate(
        PROMPT, max_new_tokens=24, ignore_eos=True
    )
    assert done.tokens == plain
    assert done.stats.levels[0].draft_tokens


def test_a_conversation_and_several_completions_have_features_of_what_was_cached(drafter: Path) -> None:
    model, other = (foretoken.load(TARGET, draft=str(draft), pace="fixed") for draft in (drafter, "none"))
    settings: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True}
    many = [each.tokens for each in model.completions(PROMPT, n=3, temperature=0.8, seed=1, **settings)]
    assert many == [each.tokens for each in other.completions(PROMPT, n=3, temperature=0.8, seed=1, **settings)]
    chats = [each.chat(plain=True) for each in (model, other)]
    for turn in (PROMPT, " two\n", "def "):
        one, other_one = ("".join(piece.text for piece in chat.send(turn, **settings)) for chat in chats)
        assert one == other_one


def test_what_the_observer_saw_stands_in_the_drafters_cache(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was accepted: after each write, all that the target has read has the observer's keys and values."""
    model = foretoken.load(TARGET, draft=f"{drafter}:tokens=4", pace="fixed")
    its = model.drafter
    assert isinstance(its, MixtureDrafter)
    follow, seen = MixtureDrafter._follow_target, 0

    def looked_at(self: MixtureDrafter, sequence: int, stop: int) -> list[Work]:
        nonlocal seen
        work = follow(self, sequence, stop)
        assert self.beside is not None
        reading, theirs, observer = self._readings[sequence], self.beside.view(sequence, length=stop), self.observer
        assert isinstance(observer, ObservingLayers)
        cache = reading.open()
        assert cache.length >= theirs.length, "nothing that the target has read is left to run"
        tokens = self.model.embed(reading.text[: theirs.length])
        vectors = observer.projected(observer(theirs, 0, theirs.length)["observed"])
        for layer, states in ((0, tokens), (1, vectors)):
            keys, _ = self.model.keys_and_values(layer, states, range(theirs.length))
            found = cache.read(layer)[0][: theirs.length]
            assert torch.allclose(found.float(), keys.float(), atol=0.05)
        seen += theirs.length
        return work

    monkeypatch.setattr(MixtureDrafter, "_follow_target", looked_at)
    model.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    model.completions(PROMPT, n=2, temperature=0.8, seed=1, max_new_tokens=12, ignore_eos=True)
    chat = model.chat(plain=True)
    for turn in (PROMPT, " two\n"):
        assert [piece.text for piece in chat.send(turn, max_new_tokens=12, ignore_eos=True)]
    assert seen > 500


def test_no_text_is_observed_twice(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions of one prompt share what was observed of it, and a conversation keeps it from turn to turn."""
    model = foretoken.load(TARGET, draft=f"{drafter}:tokens=4", pace="fixed")
    its = model.drafter
    assert isinstance(its, MixtureDrafter)
    observer, asked = its.observer, 0

    class Counting(ObservingLayers):
        def __call__(self, cache: Cache, start: int, stop: int) -> Any:
            nonlocal asked
            asked += stop - start
            return super().__call__(cache, start, stop)

    monkeypatch.setattr(observer, "__class__", Counting)
    prompt = tuple(range(300, 500))
    many = model.completions(prompt, n=3, temperature=0.8, seed=1, max_new_tokens=12, ignore_eos=True)
    assert 200 <= asked <= 200 + sum(len(each.tokens) for each in many)
    asked = 0
    chat, length = model.chat(plain=True), 0
    for turn in ("def add(one, other):\n    return one + other\n" * 8, "def subtract(", " two\n"):
        for _ in chat.send(turn, max_new_tokens=12, ignore_eos=True):
            pass
        assert chat.prompt is not None
        length = len(chat.prompt) + 12
    assert 100 < asked <= length


def test_what_an_observer_costs_is_told(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = foretoken.load(TARGET, draft=f"{drafter}:tokens=4", pace="fixed")
    its = model.drafter
    assert isinstance(its, MixtureDrafter)
    done = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    ours = done.stats.cost[its.name]
    monkeypatch.setattr(its.observer, "cost", lambda tokens: Cost())
    without = model.generate(PROMPT, max_new_tokens=24, ignore_eos=True).stats.cost[its.name]
    observed = its.observer.config.observed * len(its.observer.config.layers) * 2
    assert ours.flops > without.flops
    assert ours.weight_bytes > without.weight_bytes
    # the drafts of a prompt's last token are made before the first check, and what is observed then belongs to it
    assert observed * 20 <= ours.cache_bytes - without.cache_bytes <= observed * (24 + done.prompt_tokens)


def test_features_lost_with_a_verdict_leave_a_gap(drafter: Path) -> None:
    model = foretoken.load(TARGET, draft=f"{drafter}:tokens=4", pace="fixed")
    its = model.drafter
    assert isinstance(its, MixtureDrafter)
    vectors = torch.arange(12.0)[:, None]
    its._waiting[0] = [Features(0, {FEATURE: vectors[:4]}), Features(6, {FEATURE: vectors[6:12]})]
    its.beside = None
    found = [(start, piece[FEATURE][:, 0].tolist()) for start, piece in its._came(0, 2, 9)]
    assert found == [(2, [2.0, 3.0]), (6, [6.0, 7.0, 8.0])]
    ((start, piece),) = its._came(0, 9, 20)
    assert (start, piece[FEATURE][:, 0].tolist()) == (9, [9.0, 10.0, 11.0])


def test_another_model_and_another_place_are_refused(drafter: Path, tmp_path: Path) -> None:
    def refused(match: str, model: str = TARGET, **settings: Any) -> None:
        with pytest.raises((DraftSpecError, CheckpointError), match=match):
            foretoken.load(model, **settings)

    refused("was trained for a model whose number of layers is 2, and this one's is 4", "stdlib-7m", draft=str(drafter))
    refused("which sees what the model computes; put it first", draft=f"int8,{drafter}")
    refused("has no option 'own-head'; leave it out", draft=f"{drafter}:format=int4:own-head")
    refused("'inputs' belongs to a low-bit format", draft=f"{drafter}:format=bf16:inputs=bf16")
    refused("which is not kept without a cache", draft=str(drafter), cache=False)
    other = tmp_path / "other"
    shutil.copytree(drafter, other)
    about = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**about, "fingerprint": "0" * 64}))
    refused("was trained for another model of this shape, or for this one before", draft=str(other))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"version": 9}, "version 9; expected one of mixture, block, eagle2, eagle3, independent, version 3"),
        ({"kv_heads": 0}, "kv_heads is 0, expected a whole number from 1 to"),
        ({"layers": [0, 5]}, "layers is .0, 5., expected a list of some of the model's layers, in order"),
        ({"fingerprint": None}, "fingerprint is None, expected a text"),
        ({"intermediate_size": 64}, r"gate_proj.weight is torch.bfloat16 \[\d+, 128\], expected \[64, 128\]"),
    ],
)
def test_a_damaged_configuration_is_named(drafter: Path, tmp_path: Path, change: dict[str, Any], match: str) -> None:
    folder = tmp_path / "it"
    shutil.copytree(drafter, folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(CheckpointError, match=match):
        foretoken.load(TARGET, draft=str(folder))


def test_damaged_weights_are_named(drafter: Path, tmp_path: Path) -> None:
    folder = tmp_path / "it"
    shutil.copytree(drafter, folder)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        read_trained(folder)
    tensors = {**load_file(drafter / "model.safetensors")}
    name = "observer.projection.bias"
    save_file({**tensors, name: tensors[name] * torch.nan}, weights)
    with pytest.raises(CheckpointError, match=f"{name} holds NaN"):
        read_trained(folder)
    del tensors[name]
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_trained(folder)
    assert is_trained(folder)
    assert not is_trained(tmp_path)


def test_a_folder_of_others_is_not_written_over(tmp_path: Path) -> None:
    config = read_config(EMBEDDED[TARGET])
    its = mixture_for(config, "it")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("text")
    with pytest.raises(InputError, match="holds no trained drafter"):
        write_trained(tmp_path / "mine", its, {})
    assert (tmp_path / "mine" / "file").read_text() == "text"


def test_the_embedded_drafter_yields_three_tokens_a_check_on_held_out_text() -> None:
    model = foretoken.load("stdlib-7m", draft="moa:tokens=6", pace="fixed")
    suite = open_suite("heldout-20", model.tokenizer, count=6)
    texts = [model.generate(p.turns[0], max_new_tokens=64, ignore_eos=True).stats for p in suite.prompts]
    checks = sum(each.passes for each in texts)
    assert (checks + sum(each.accepted_tokens for each in texts)) / checks >= 3.0
    with pytest.raises(
        CheckpointError, match="was trained for a model whose number of layers is 4, and this one's is 2"
    ):
        foretoken.load("stdlib-1m", draft="moa")
