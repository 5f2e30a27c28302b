"""Low-bit models as targets and as drafts of others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import foretoken
from foretoken.api import checkpoint
from foretoken.api.levels import DRAFT_INPUTS
from foretoken.common.source import EMBEDDED
from foretoken.decoder.linear import Linear
from foretoken.decoder.low_bit import dequantised, quantised
from foretoken.decoder.shapes import linear_shapes
from foretoken.decoder.weights import Weights
from foretoken.errors import CheckpointError, DraftSpecError
from foretoken.formats import format_of
from foretoken.formats.weight import QuantisedWeight
from tests.copies.loaded import copies, expect_equal, generate, in_pytorch, load, samplings
from tests.isas import HERE


def write(folder: Path, weights: Weights, coded: str | None) -> Path:
    """The small embedded model with other weights: a checkpoint in a low-bit format, or of bf16 ones."""
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = foretoken.load("stdlib-1m", draft="none").target.config
    tensors = dict(weights.tensors)
    head, *layers = weights.linears
    for name, linear in zip(linear_shapes(config), [*layers, head], strict=True):
        if isinstance(linear.weight, QuantisedWeight):
            tensors[f"{name}.weight.codes"], tensors[f"{name}.weight.scales"] = (
                linear.weight.codes,
                linear.weight.scales,
            )
        else:
            tensors[f"{name}.weight"] = linear.values
    raw["tie_word_embeddings"] = coded is not None  # the values of the output layer are others than the embedding
    if coded is not None:
        raw["quantization_config"] = {"quant_method": "foretoken", "format": coded}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def low_bit(label: str) -> Weights:
    target = foretoken.load("stdlib-1m", draft="none").target
    return quantised(target.weights, target.config, format_of(label))


_OTHERS = [pytest.param(label, marks=pytest.mark.prove) for label in ["int8", "int3-g64", "int2-g128"] * bool(HERE)]


@samplings
@pytest.mark.parametrize("label", ["mxfp4", "int4-g32", *_OTHERS])
def test_a_low_bit_model_is_the_bf16_model_of_its_values_with_every_draft(
    tmp_path: Path, label: str, sampling: dict[str, Any]
) -> None:
    weights = low_bit(label)
    low = write(tmp_path / "low", weights, label)
    plain = generate(load("none", write(tmp_path / "bf16", dequantised(weights), None)), **sampling)
    accepted = 0
    for settings in ({}, {"weights": "copied"}):
        for draft in ("none", "lookup", "mxfp4,lookup", "int2:own-cache", "int4:k=2:depth=3"):
            model = load(draft, low, **settings)
            assert {linear.format for linear in model.target.weights.linears} == {label}
            done = generate(model, **sampling)
            expect_equal(done, plain)
            accepted += done.stats.accepted_tokens
    assert accepted > 20
    assert plain.tokens != generate(load("none"), **sampling).tokens or label == "int8"


def test_a_copy_of_a_low_bit_model_in_its_own_format_is_always_right(tmp_path: Path) -> None:
    done = generate(load("mxfp4:inputs=bf16:tokens=4", write(tmp_path / "low", low_bit("mxfp4"), "mxfp4")))
    assert done.stats.accepted_tokens == done.stats.draft_tokens > 20


def test_a_low_bit_model_may_draft_for_another(tmp_path: Path) -> None:
    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    plain = generate(load("none", "stdlib-7m"))
    for draft, inputs in (
        (str(low), DRAFT_INPUTS),
        (f"{low}:k=2:depth=3:inputs=int8", "int8"),
        (f"{low}:format=int4:group=64:inputs=bf16,lookup", "bf16"),  # in which it is
    ):
        model = load(draft, "stdlib-7m")
        assert {(linear.format, linear.inputs) for linear in copies(model)[0].model.weights.linears} == {
            ("int4-g64", inputs)
        }
        done = generate(model)
        expect_equal(done, plain)
        assert done.stats.accepted_tokens > 0


def test_what_a_low_bit_checkpoint_cannot_be_is_refused_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **named: Any) -> Any:
        raise AssertionError("weights were loaded")

    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    monkeypatch.setattr(checkpoint, "load_weights", never)
    for draft, message in (
        (
            f"{low}:format=int2",
            f"draft '{low}' is in int4-g64 already, of which no other format is made; leave format out, or name the "
            "model that it was made of",
        ),
        (f"{low}:format=int4:group=32", f"draft '{low}' is in int4-g64 already"),
        (f"{low}:group=64", f"draft '{low}': 'group' belongs to a low-bit format; add format=int4"),
        (f"{low}:own-cache", f"draft '{low}' is no copy of the model, and has a cache of its own anyhow; leave"),
        ("stdlib-1m:own-cache", "draft 'stdlib-1m' is no copy of the model, and has a cache of its own anyhow; leave"),
        ("stdlib-1m:inputs=bf16", "draft 'stdlib-1m': 'inputs' belongs to a low-bit format; add format=int4, or leav"),
    ):
        with pytest.raises(DraftSpecError) as error:
            load(draft, "stdlib-7m")
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (
            "stdlib-1m,int4-g32",
            "draft 'int4-g32' is a copy of the model, and would draft for 'stdlib-1m' here; put it first, or name a "
            "copy of that one: stdlib-1m:format=int4:group=32",
        ),
        (
            "mxfp4,stdlib-1m:tokens=2,int2,lookup",
            "draft 'int2' is a copy of the model, and would draft for 'stdlib-1m' here; put it first, or name a copy "
            "of that one: stdlib-1m:format=int2",
        ),
    ],
)
def test_a_copy_below_another_checkpoint_is_refused(draft: str, message: str) -> None:
    with pytest.raises(DraftSpecError) as error:
        load(draft, "stdlib-7m")
    assert str(error.value) == message


def test_a_low_bit_model_in_pytorch_says_the_same_with_drafts_and_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    low = write(tmp_path / "low", low_bit("int4"), "int4-g64")
    with in_pytorch(monkeypatch):
        plain = generate(load("none", low))
        for draft in ("lookup", "mxfp4"):
            caplog.clear()
            expect_equal(generate(load(draft, low)), plain)
            told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            told = [message for message in told if "cannot speed up" not in message]  # which is true here
            assert len(told) == (2 if draft == "mxfp4" else 1), "once of the model, once of the draft"
            assert told[0].startswith(f"{low} (int4-g64) runs in PyTorch (the native module is ")
            assert told[0].endswith("it is no smaller and no faster than the weights that it was made of")


def test_a_model_that_holds_no_numbers_has_no_copy(tmp_path: Path) -> None:
    weights = low_bit("mxfp4")
    plain = dequantised(weights)
    bad: Sequence[Linear] = plain.linears
    bad[1].values[3, 5] = torch.nan
    folder = write(tmp_path / "bad", plain, None)
    with pytest.raises(CheckpointError, match=r"^model\.layers\.0\.self_attn\.q_proj\.weight holds 1 NaN and 0 inf"):
        load("mxfp4", folder)
