"""The copy that lies beside its model drafts for it, if it is that model's."""

from __future__ import annotations

import errno
import json
import logging
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.api import levels
from foretoken.api.levels import DRAFT_INPUTS
from foretoken.copies import beside
from foretoken.copies.fingerprint import fingerprint
from foretoken.decoder import loading
from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.drafters.ladder import find_levels, name_levels
from foretoken.errors import DraftSpecError, ModelError
from foretoken.formats import quantiser, slices, values
from foretoken.formats.weight import QuantisedWeight
from foretoken.settings.load import LoadSettings
from tests.copies.conftest import copy_of, write_checkpoint
from tests.tiny import needs_native

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture
def casts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats that are cast at load, as it happens."""
    made: list[str] = []

    def counted(weights: Any, config: Any, format: Any, **how: Any) -> Any:
        made.append(format.label)
        return cast(weights, config, format, **how)

    cast = levels.cast
    monkeypatch.setattr(levels, "cast", counted)
    return made


def draft_of(model: Path, draft: str, **settings: Any) -> Decoder:
    """The decoder of a draft's first level."""
    chosen = LoadSettings(draft=draft, **settings)
    target = foretoken.load(model, draft="none", **settings).target
    level = find_levels(name_levels(chosen), model)[0]
    return levels.load_level(level, model, target, chosen).decoder


def same_codes(decoder: Decoder, folder: Path) -> bool:
    written = foretoken.load(folder, draft="none").target.weights.linears
    pairs = [(one.weight, other.weight) for one, other in zip(decoder.weights.linears, written, strict=True)]
    return all(
        isinstance(a, QuantisedWeight) and isinstance(b, QuantisedWeight) and torch.equal(a.codes, b.codes)
        for a, b in pairs
    )


def test_a_copy_beside_the_model_is_read_and_nothing_is_cast(model: Path, casts: list[str]) -> None:
    out = copy_of(model, quantiser="hqq")
    assert same_codes(draft_of(model, "int4"), out)
    loaded = foretoken.load(model, draft="int4:tokens=3", pace="fixed")
    done = loaded.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    assert casts == []
    plain = foretoken.load(model, draft="none").generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    assert done.tokens == plain.tokens
    assert done.stats.accepted_tokens > 0


def test_without_one_or_with_another_format_it_is_cast(model: Path, casts: list[str]) -> None:
    copy_of(model, "int4")
    for draft in ("int2", "int4:group=32", "mxfp4", "int4"):
        draft_of(model, draft)
    assert casts == ["int2-g64", "int4-g32", "mxfp4"]


def test_its_codes_have_memory_of_their_own_and_the_rest_is_the_models(model: Path) -> None:
    copy_of(model, "mxfp4")
    chosen = LoadSettings(draft="mxfp4")
    target = foretoken.load(model, draft="none").target
    drafter = levels.load_level(name_levels(chosen)[0], model, target, chosen).decoder.weights
    assert drafter.embedding is target.weights.embedding
    assert drafter.norm is target.weights.norm
    storages = set()
    for linear in drafter.linears:
        assert isinstance(linear.weight, QuantisedWeight)
        assert linear.weight.codes.data_ptr() % 64 == 0
        storages |= {part.untyped_storage().data_ptr() for part in (linear.weight.codes, linear.weight.scales)}
    assert len(storages) == 1, "one allocation"
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "llama-mxfp4" not in maps.read_text(encoding="utf-8"), "its files are let go"


@needs_native
@pytest.mark.parametrize("settings", [{"weights": "copied"}, {"dtype": "float32"}])
def test_however_the_model_is_loaded_its_copy_drafts(settings: dict[str, Any], model: Path, casts: list[str]) -> None:
    copy_of(model, "mxfp4")
    answers = [
        foretoken.load(model, draft=draft, **settings).generate(PROMPT, max_new_tokens=16, ignore_eos=True).tokens
        for draft in ("none", "mxfp4,lookup")
    ]
    assert answers[0] == answers[1]
    assert casts == []


def test_a_checkpoint_that_drafts_in_a_format_has_its_copy_beside_it(model: Path, casts: list[str]) -> None:
    out = copy_of(model)
    target = write_checkpoint(model.with_name("target"), seed=1)
    assert same_codes(draft_of(target, f"{model}:format=int4"), out)
    assert casts == []


def test_a_copy_is_a_model_and_a_draft_by_its_folder(model: Path, casts: list[str]) -> None:
    out = copy_of(model)
    low_bit = foretoken.load(out, draft="none")
    truth = low_bit.generate(PROMPT, max_new_tokens=16, ignore_eos=True).tokens
    for draft in ("mxfp4", "int2,lookup", str(model), f"{out}:k=2:depth=3"):
        done = foretoken.load(out, draft=draft, pace="fixed").generate(PROMPT, max_new_tokens=16, ignore_eos=True)
        assert done.tokens == truth, draft
        assert done.stats.draft_tokens > 0
    assert casts == ["mxfp4", "int2-g64"], "of the copy's values"
    plain = foretoken.load(model, draft="none").generate(PROMPT, max_new_tokens=16, ignore_eos=True).tokens
    drafted = foretoken.load(model, draft=str(out), pace="fixed").generate(PROMPT, max_new_tokens=16, ignore_eos=True)
    assert drafted.tokens == plain
    assert drafted.stats.accepted_tokens > 0


def drafters(model: foretoken.Model) -> list[Any]:
    """Nearest to the target first."""
    found, drafter = [], model.drafter
    while drafter is not None:
        found.append(drafter)
        drafter = getattr(drafter, "inner", None)
    return found


def test_a_copy_that_is_named_by_its_folder_is_one_as_if_by_its_format(model: Path, casts: list[str]) -> None:
    out = copy_of(model, out=model.with_name("elsewhere"))
    below = copy_of(model, "int2")
    plain = foretoken.load(model, draft="none").generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    for options, inputs, shares in (("", DRAFT_INPUTS, True), (":inputs=bf16:own-cache", "bf16", False)):
        loaded = foretoken.load(model, draft=f"{out}{options},{below}:inputs=bf16,lookup", pace="fixed")
        first, second, _ = drafters(loaded)
        assert same_codes(first.model, out)
        assert same_codes(second.model, below)
        for copy in (first, second):
            assert copy.model.weights.embedding is loaded.target.weights.embedding
            assert copy.model.weights.norm is loaded.target.weights.norm
            assert copy.model.config is loaded.target.config
        assert {linear.inputs for linear in first.model.weights.linears} == {inputs}
        assert {linear.inputs for linear in second.model.weights.linears} == {"bf16"}
        assert (first.views is not None) == shares
        assert second.views is first._checked
        done = loaded.generate(PROMPT, max_new_tokens=24, ignore_eos=True)
        assert done.tokens == plain.tokens
        assert done.stats.accepted_tokens > 0
    assert casts == []


def test_a_copy_of_another_model_is_a_checkpoint_like_any_other(model: Path) -> None:
    out = copy_of(model)
    target = write_checkpoint(model.with_name("target"), seed=1)
    (first,) = drafters(foretoken.load(target, draft=str(out)))
    assert first.views is None
    assert {linear.inputs for linear in first.model.weights.linears} == {DRAFT_INPUTS}
    for draft in (f"{out},int2", f"{model},{copy_of(target, 'int2')}"):
        with pytest.raises(
            DraftSpecError, match=r"is a copy of the model, and would draft for '.*' here; put it first"
        ):
            foretoken.load(target, draft=draft, pace="fixed")
    with pytest.raises(DraftSpecError, match=r"is no copy of the model, and has a cache of its own anyhow"):
        foretoken.load(target, draft=f"{out}:own-cache", pace="fixed")


def test_a_copy_in_another_format_is_told_with_how_to_ask_for_it(
    model: Path, casts: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def told(target: Path, draft: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger=levels.__name__):
            draft_of(target, draft)
        found = [record for record in caplog.records if "would read that instead" in record.getMessage()]
        assert {record.levelno for record in found} <= {logging.DEBUG}, "only who asks for more is told"
        return [record.getMessage() for record in found]

    other = write_checkpoint(model.with_name("other"), seed=1)
    assert told(model, "int4") == []
    copy_of(model, "int2")
    out = copy_of(model, "int4-g128")
    assert told(model, "int4") == [f"beside the model lies {out}: --draft int4-g128 would read that instead"]
    asked = f"{model}:format=int4:group=128"
    assert told(other, f"{model}:format=int4") == [
        f"beside the model lies {out}: --draft {asked} would read that instead"
    ]
    casts.clear()
    assert told(model, "int4-g128") == told(other, asked) == []
    assert casts == []
    write_checkpoint(model, seed=2)
    assert told(model, "int4") == [], "they are of other weights"


def test_threads_are_those_that_were_asked_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[int | None]] = {}

    def counted(name: str) -> Any:
        def on_threads(work: Any, items: Any, threads: int | None) -> None:
            asked.setdefault(name, []).append(threads)
            slices.on_threads(work, items, threads)

        return on_threads

    out = copy_of(model)
    for module in (quantiser, values, loading):
        monkeypatch.setattr(module, "on_threads", counted(module.__name__))
    foretoken.load(out, draft="int2", threads=2, pace="fixed")
    foretoken.load(model, draft="int4", threads=2, pace="fixed")
    assert {name: set(threads) for name, threads in asked.items()} == {
        module.__name__: {2} for module in (quantiser, values, loading)
    }


def test_where_there_is_no_memory_a_copy_is_not_called_damaged(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    copy_of(model)
    monkeypatch.setattr(mmap, "mmap", refuse)
    for draft in ("int4", "int2"):  # read, and cast
        with pytest.raises(
            ModelError, match=r"of memory for the weights .*; free some, or draft with a smaller format"
        ):
            draft_of(model, draft)
    assert "is not used" not in caplog.text


def warning(caplog: pytest.LogCaptureFixture, model: Path, casts: list[str]) -> str:
    """What is said of the copy beside a model, which is not used."""
    caplog.clear()
    casts.clear()
    with caplog.at_level(logging.WARNING):
        draft_of(model, "int4")
    assert casts == ["int4-g64"]
    (record,) = [record for record in caplog.records if record.name == beside.__name__]
    message = record.getMessage()
    start, end = f"{model}-int4-g64 is not used: ", "; quantise the model again with --force, or take it away"
    assert message.startswith(start)
    assert message.endswith(end)
    assert "\n" not in message
    return message[len(start) : -len(end)]


def test_a_copy_that_is_another_models_or_damaged_is_told_and_not_used(
    model: Path, casts: list[str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    out = copy_of(model)
    config = (out / "config.json").read_text(encoding="utf-8")
    write_checkpoint(model, seed=1)
    assert warning(caplog, model, casts) == f"it was made of other weights than those in {model}"
    write_checkpoint(model)
    for was, then, reason in (
        ("int4-g64", "int2-g64", "it is in int2-g64"),
        ('"version": 1', '"version": 2', "config.json: quantization_config: version is 2, expected 1; "),
        ('"quantization_config"', '"another"', "it is no low-bit copy"),
        ("{", "", f"{out}/config.json is not JSON"),
    ):
        (out / "config.json").write_text(config.replace(was, then, 1), encoding="utf-8")
        assert warning(caplog, model, casts).startswith(reason)
    (out / "config.json").write_text(config, encoding="utf-8")
    whole = load_file(out / "model.safetensors")
    scales = whole["lm_head.weight.scales"].clone()
    whole["lm_head.weight.scales"].view(-1)[0] = float("nan")
    save_file(whole, out / "model.safetensors")
    assert warning(caplog, model, casts).startswith("lm_head.weight (int4-g64) has 1 groups with a scale")
    whole["lm_head.weight.scales"] = scales[:-1]
    save_file(whole, out / "model.safetensors")
    assert warning(caplog, model, casts).startswith("the scales of lm_head.weight are bfloat16 [6, 1, 16, 2]")
    (out / "model.safetensors").unlink()
    assert warning(caplog, model, casts).startswith(f"{out} has no model.safetensors")


def test_the_warning_reaches_standard_error_as_one_line(model: Path) -> None:
    copy_of(model)
    write_checkpoint(model, seed=1)
    code = "import sys, foretoken; foretoken.load(sys.argv[1], draft='int4', pace='fixed')"
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, text=True, check=True)
    # A copy of so small a model may be slower than the model, and PyTorch may compute: each has a line of its own.
    told = [line for line in done.stderr.splitlines() if "PyTorch" not in line and "cannot speed up" not in line]
    assert told == [
        f"{model}-int4-g64 is not used: it was made of other weights than those in {model}; quantise the model again "
        "with --force, or take it away"
    ]


# -- the fingerprint ------------------------------------------------------------------------------------------------


def print_of(folder: Path) -> str:
    return fingerprint(folder, parse_config(read_json(folder / "config.json")))


def test_a_fingerprint_is_the_weights_and_what_they_are_put_together_to(tmp_path: Path) -> None:
    first = print_of(write_checkpoint(tmp_path / "a"))
    assert print_of(write_checkpoint(tmp_path / "b")) == first
    # what can be set otherwise for the same weights
    assert print_of(write_checkpoint(tmp_path / "c", max_position_embeddings=1024, rope_theta=5e5)) == first
    others = [
        print_of(write_checkpoint(tmp_path / f"other-{i}", **changes))
        for i, changes in enumerate(
            [
                {"seed": 1},
                {"dtype": torch.float16},
                {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
                {"tie_word_embeddings": True},
                {"model_type": "mistral"},
            ]
        )
    ]
    assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize("place", [0, 1 / 2, 1])
def test_a_number_where_it_looks_makes_it_another(place: float, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "a", vocab_size=4000)
    before = print_of(model)
    tensors = load_file(model / "model.safetensors")
    for name in ("model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight", "model.norm.weight"):
        changed = {n: tensor.clone() for n, tensor in tensors.items()}
        changed[name].view(-1)[int(place * (changed[name].numel() - 1))] += 1
        save_file(changed, model / "model.safetensors")
        assert print_of(model) != before
    far = {n: tensor.clone() for n, tensor in tensors.items()}
    far["model.embed_tokens.weight"].view(-1)[30_000] += 1
    save_file(far, model / "model.safetensors")
    assert print_of(model) == before, "it does not look at every number, and says so"


def test_the_configuration_holds_the_fingerprint(model: Path) -> None:
    about = json.loads((copy_of(model) / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert about["source"] == print_of(model)
