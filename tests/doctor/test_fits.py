"""Sizes are those of real weights, and what fits follows from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foretoken.common.source import EMBEDDED
from foretoken.decoder.low_bit import quantised
from foretoken.doctor import fits
from foretoken.doctor.facts import Checkpoint
from foretoken.errors import ModelNotFoundError
from foretoken.formats.weight import QuantisedWeight
from foretoken.rehearsal.shapes import SHAPES, Shape
from tests.tiny import tiny_decoder

FOLDER = EMBEDDED["stdlib-7m"]


def shape_of(folder: Path) -> Shape:
    shape = fits.examine(str(folder), folder, None, whole=True)[1]
    assert shape is not None
    return shape


def test_the_size_of_a_checkpoint_is_that_of_its_tensors() -> None:
    real = sum(tensor.nbytes for tensor in load_file(FOLDER / "model.safetensors").values())
    fit = fits.fit(shape_of(FOLDER), "bf16", None, None, None)
    assert fit.size == real
    assert fit.fits is None
    assert fit.tokens_per_second is None


@pytest.mark.parametrize("name", ["int8", "int4", "mxfp4", "int2-g32"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_size_in_a_low_bit_format_is_that_of_what_is_made(name: str, tied: bool) -> None:
    from foretoken.formats import format_of

    decoder = tiny_decoder(dtype=torch.bfloat16, tie_word_embeddings=tied, hidden_size=64, vocab_size=101, head_dim=16)
    c = decoder.config
    shape = Shape("x", "llama", *(getattr(c, size) for size in fits._SIZES))
    made = quantised(decoder.weights, c, format_of(name))
    coded = [linear.weight for linear in made.linears if isinstance(linear.weight, QuantisedWeight)]
    fit = fits.fit(shape, name, None, None, None)
    assert len(coded) == 7 * c.num_layers + 1
    assert fit.read == sum(weight.nbytes for weight in coded)
    assert fit.size == fit.read + sum(tensor.nbytes for tensor in made.tensors.values())


def test_memory_is_for_weights_keys_and_values_a_draft_and_the_process() -> None:
    shape = SHAPES["llama-3.2-1b"]
    whole = fits.fit(shape, "bf16", 64 << 30, 30e9, 1e9)
    assert whole.fits == "yes"
    assert whole.tokens_per_second == pytest.approx(30e9 / whole.read)
    assert whole.needs == (
        whole.size + fits.CONTEXT * shape.cache_bytes + fits.PROCESS + fits.fit(shape, "mxfp4", None, None, None).read
    )
    assert fits.fit(shape, "bf16", whole.needs, 30e9, 1e9).fits == "yes"
    tight = fits.fit(shape, "bf16", whole.needs - 1, 30e9, 1e9)
    assert (tight.fits, tight.tokens_per_second) == ("without a draft copy", whole.tokens_per_second)
    none = fits.fit(shape, "bf16", whole.size, 30e9, 1e9)
    assert none.fits == "no"
    assert none.tokens_per_second == pytest.approx(1e9 / whole.read), "it is read from the disk, again and again"
    assert fits.fit(shape, "bf16", whole.size, 30e9, None).tokens_per_second is None


def test_a_checkpoint_is_examined_without_being_run(tmp_path: Path) -> None:
    found, shape = fits.examine("stdlib-7m", FOLDER, None, whole=True)
    assert found == Checkpoint("stdlib-7m", str(FOLDER), "llama", "bf16", here=True)
    assert shape is not None
    assert shape.name == "stdlib-7m"
    assert fits.formats_of("bf16") == ("bf16", "int8", "int4", "mxfp4")
    assert fits.formats_of("int4-g64") == ("int4-g64",)
    raw = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    absent, _ = fits.examine("owner/name", tmp_path, None, whole=False)
    assert (absent.here, absent.error, absent.format) == (False, None, "bf16")
    lacking, no_shape = fits.examine(str(tmp_path), tmp_path, None, whole=True)
    assert "no model.safetensors" in str(lacking.error)
    assert no_shape is None
    (tmp_path / "model.safetensors").write_bytes((FOLDER / "model.safetensors").read_bytes()[:1000])
    assert "model.safetensors" in str(fits.examine(str(tmp_path), tmp_path, None, whole=True)[0].error)


def test_a_model_of_the_hub_is_not_fetched_to_tell_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def download(model: str, revision: str | None, files: list[str]) -> Path:
        fetched.append(files)
        return tmp_path

    monkeypatch.setattr("foretoken.common.source._download", download)
    assert fits.find("owner/name") == (tmp_path, False)
    assert fetched == [["config.json"]]
    assert fits.find("stdlib-1m") == (EMBEDDED["stdlib-1m"], True)
    with pytest.raises(ModelNotFoundError, match="there is no folder 'nothing'"):
        fits.find("nothing")
