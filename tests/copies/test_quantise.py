"""Copies in files: the same bits as quantising in memory, in files that others can read."""

from __future__ import annotations

import io
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.common import progress as progress_module
from foretoken.common.source import EMBEDDED
from foretoken.copies import quantise as copies
from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.rows import chain
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.weights import Weights
from foretoken.errors import CheckpointError, InputError, ModelError, SettingError, UnsupportedModelError
from foretoken.formats import FORMATS, format_of
from foretoken.formats.weight import QuantisedWeight
from tests.copies.conftest import copy_of, left_in, write_checkpoint
from tests.tiny import BASE, all_logits

LABELS = (*FORMATS, "int4-g32", "int4-g128", "int2-g32")


def read(folder: Path) -> tuple[DecoderConfig, Weights]:
    config = parse_config(read_json(folder / "config.json"))
    return config, load_weights(folder, config)


def expect_same_codes(a: Weights, b: Weights) -> None:
    for one, other in zip(a.linears, b.linears, strict=True):
        assert isinstance(one.weight, QuantisedWeight)
        assert isinstance(other.weight, QuantisedWeight)
        assert (one.weight.format, one.weight.shape) == (other.weight.format, other.weight.shape)
        assert torch.equal(one.weight.codes, other.weight.codes)
        assert torch.equal(one.weight.scales.view(torch.uint8), other.weight.scales.view(torch.uint8))


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("tied", [False, True])
def test_a_copy_holds_the_bits_of_quantising_in_memory(label: str, tied: bool, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "llama", tie_word_embeddings=tied, model_type="qwen2")  # which has biases
    out = copy_of(model, label)
    config, weights = read(model)
    its_config, its_weights = read(out)
    assert its_config.low_bit == format_of(label)
    made = quantised(weights, config, format_of(label))
    expect_same_codes(its_weights, made)
    assert list(its_weights.tensors) == list(expected_shapes(its_config))
    assert any(name.endswith("bias") for name in its_weights.tensors)
    for name, tensor in its_weights.tensors.items():
        assert torch.equal(tensor, weights.tensors[name])
    tokens = [3, 1, 4, 1, 5]
    passes = [Decoder(config, made), Decoder(its_config, its_weights)]
    logits = [all_logits(decoder.run(chain(decoder.new_cache(), tokens))) for decoder in passes]
    assert torch.equal(*logits)


def test_hqq_makes_a_copy_of_its_own(model: Path) -> None:
    direct, hqq = copy_of(model), copy_of(model, out=model.with_name("hqq"), quantiser="hqq")
    config, weights = read(model)
    expect_same_codes(read(hqq)[1], quantised(weights, config, format_of("int4"), quantiser="hqq"))
    one, other = (read(folder)[1].head.weight for folder in (direct, hqq))
    assert isinstance(one, QuantisedWeight)
    assert isinstance(other, QuantisedWeight)
    assert not torch.equal(one.codes, other.codes)
    assert read_json(hqq / "config.json")["quantization_config"]["quantizer"] == "hqq"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_numbers_that_stay_keep_their_type(dtype: torch.dtype, tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "llama", dtype=dtype)
    config, weights = read(model)
    its = read(copy_of(model, "int8"))[1]
    assert its.embedding.dtype == its.norm.dtype == dtype
    expect_same_codes(its, quantised(weights, config, FORMATS["int8"]))


def test_where_types_are_mixed_the_codes_are_those_of_the_loaded_model(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(97, 32)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float() + 0.001
    save_file(tensors, model / "model.safetensors")
    config, weights = read(model)
    assert weights.head.values.dtype == torch.bfloat16
    out = copy_of(model)
    expect_same_codes(read(out)[1], quantised(weights, config, FORMATS["int4"]))
    assert torch.equal(load_file(out / "model.safetensors")["model.norm.weight"], tensors["model.norm.weight"])


def test_rows_are_quantised_some_at_a_time_without_a_trace(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (copy_of(model) / "model.safetensors").read_bytes()
    monkeypatch.setattr(copies, "_TOGETHER", 32 * 16)  # a tile of the head
    assert (copy_of(model, out=model.with_name("again")) / "model.safetensors").read_bytes() == whole


def test_the_configuration_says_what_was_done_and_keeps_the_rest(model: Path) -> None:
    (model / "generation_config.json").write_text('{"eos_token_id": 7}', encoding="utf-8")
    (model / "notes.txt").touch()
    out = copy_of(model, "int4-g128")
    raw, its = read_json(model / "config.json"), read_json(out / "config.json")
    about = its.pop("quantization_config")
    assert its == raw
    assert re_hex(about.pop("source"))
    assert about == {"quant_method": "foretoken", "version": 1, "format": "int4-g128", "quantizer": "direct"}
    assert left_in(out) == ["config.json", "generation_config.json", "model.safetensors"]
    assert (out / "generation_config.json").read_text(encoding="utf-8") == '{"eos_token_id": 7}'


def re_hex(text: str) -> bool:
    return len(text) == 64 and int(text, 16) >= 0


def test_a_copy_of_an_embedded_model_comes_with_its_tokenizer_and_talks(tmp_path: Path) -> None:
    out = copy_of(EMBEDDED["stdlib-1m"], "int8", tmp_path / "small")
    done = foretoken.load(out, draft="none").generate("def add(", max_new_tokens=8)
    drafted = foretoken.load(out, draft="int2,lookup", pace="fixed").generate("def add(", max_new_tokens=8)
    assert done.tokens == drafted.tokens
    assert done.text
    assert drafted.stats.draft_tokens > 0


@pytest.mark.parametrize("label", FORMATS)
def test_codes_begin_at_lines_of_memory(label: str, model: Path) -> None:
    path = copy_of(model, label) / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert (8 + length) % 64 == 0
    ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    assert ends[0][0] == 0
    assert ends[-1][1] == len(data) - 8 - length
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ends)), "no holes, which are forbidden"
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (not a dictionary)
            tensor = file.get_tensor(name)
            assert tensor.data_ptr() % (64 if name.endswith("codes") else tensor.element_size()) == 0


@pytest.mark.parametrize("shard", [1, 3000, 9000])
def test_large_copies_are_divided_among_files_as_hugging_face_does(shard: int, model: Path) -> None:
    whole, out = copy_of(model), copy_of(model, out=model.with_name("shards"), shard=shard)
    index = read_json(out / "model.safetensors.index.json")
    files = sorted({*index["weight_map"].values()})
    assert files == [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    assert left_in(out) == ["config.json", *files, "model.safetensors.index.json"]
    assert len(files) >= 3
    seen = {}
    for file in files:
        tensors = load_file(out / file)
        assert all(index["weight_map"][name] == file for name in tensors)
        layers = {name.rpartition(".")[0] for name in tensors}
        assert sum(tensor.nbytes for tensor in tensors.values()) <= shard or len(layers) == 1
        seen.update(tensors)
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in seen.values())}
    for name, tensor in load_file(whole / "model.safetensors").items():
        assert torch.equal(tensor.view(torch.uint8), seen.pop(name).view(torch.uint8))
    assert not seen
    expect_same_codes(read(out)[1], read(whole)[1])


def test_a_divided_model_has_the_same_copy(model: Path) -> None:
    before = copy_of(model)
    tensors = load_file(model / "model.safetensors")
    names = list(tensors)
    (model / "model.safetensors").unlink()
    for file, part in (("a.safetensors", names[::2]), ("b.safetensors", names[1::2])):
        save_file({name: tensors[name] for name in part}, model / file)
    mapping = {name: "ab"[i % 2] + ".safetensors" for i, name in enumerate(names)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}), encoding="utf-8")
    after = copy_of(model, out=model.with_name("after"))
    for name in left_in(before):
        assert (after / name).read_bytes() == (before / name).read_bytes(), "the fingerprint, too"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no account of resident memory")
def test_no_copy_of_the_model_is_ever_in_memory(tmp_path: Path) -> None:
    """A quarter of a gigabyte, mostly one matrix: the process's own memory grows by some rows' worth."""
    shape = {"hidden_size": 1024, "vocab_size": 120_000, "tie_word_embeddings": True, "num_attention_heads": 16}
    raw = {**BASE, **shape, "num_hidden_layers": 1, "head_dim": 64}
    shapes = expected_shapes(parse_config(raw))
    save_file({n: torch.ones(s, dtype=torch.bfloat16) for n, s in shapes.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    code = """
import re, sys
from pathlib import Path
from foretoken.copies import quantise as copies, tensors
from foretoken.formats import FORMATS

def own():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

class Watched(tensors.TensorFile):
    def write(self, *given):
        super().write(*given)
        seen.append(own())

copies._TOGETHER = 1 << 22
copies.write(copies.plan(Path(sys.argv[2]), Path(sys.argv[3]) / "small", FORMATS["int8"]))  # what comes once
copies.TensorFile, seen = Watched, [own()]
plan = copies.plan(Path(sys.argv[1]), Path(sys.argv[3]) / "large", FORMATS["int8"])
copies.write(plan)
print(plan.bytes_after, max(seen) - seen[0])
"""
    places = [str(tmp_path), str(EMBEDDED["stdlib-1m"]), str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *places], capture_output=True, text=True, check=True)
    size, grown = map(int, done.stdout.split())
    assert size > 350e6
    assert grown < 80e6


@pytest.mark.parametrize(("quantiser", "shown"), [("direct", False), ("hqq", True)])
def test_a_bar_says_what_is_done_of_how_much_sooner_where_it_is_slow(
    quantiser: Any, shown: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(progress_module, "LARGE", 100_000)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    copy_of(model, quantiser=quantiser)
    text = screen.getvalue()
    assert ("quantising to int4-g64" in text) == shown
    if shown:
        size = (model / "model.safetensors").stat().st_size
        assert re.search(r"([\d.]+)/\1 kB", re.sub(r"\x1b\[[0-9;]*m", "", text)), f"to the end of {size} bytes"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.embed_tokens.weight",
        "model.layers.2.self_attn.q_proj.bias",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_a_number_that_is_none_is_told_with_its_tensor_and_leaves_nothing(
    number: float, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_TOGETHER", 32 * 16)
    model = write_checkpoint(tmp_path / "llama", model_type="qwen2")
    tensors = load_file(model / "model.safetensors")
    tensors[name].view(-1)[-3:] = number
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        copy_of(model)
    assert str(error.value).startswith(f"{name} holds ")
    assert "3 " in str(error.value)
    assert f" among {tensors[name].numel()}" in str(error.value), "of the tensor, not of the rows just read"
    assert left_in(tmp_path) == ["llama"]


def test_what_is_low_bit_already_is_refused_with_what_to_do(model: Path) -> None:
    out = copy_of(model)
    with pytest.raises(UnsupportedModelError) as error:
        copy_of(out, "int2")
    assert str(error.value) == (
        f"{out} is in a low-bit format already, int4-g64; quantise the model that it was made of"
    )
    assert left_in(model.parent) == ["llama", "llama-int4-g64"]


@pytest.mark.parametrize(
    ("quantiser", "format", "message"),
    [
        ("hqq", "mxfp4", "hqq looks for zero points, and mxfp4 has none; quantise it with 'direct'"),
        ("best", "int4", "the quantiser 'best' is not known (known: direct, gptq, hqq)"),
    ],
)
def test_a_quantiser_that_cannot_do_it_is_refused_before_anything_is_read(
    quantiser: Any, format: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError) as error:
        copy_of(tmp_path / "nowhere", format, quantiser=quantiser)
    assert str(error.value) == message


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"^.*/empty has no config\.json; expected a Hugging Face checkpoint"):
        copy_of(tmp_path / "empty")
    model = write_checkpoint(tmp_path / "llama")
    (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cut short"):
        copy_of(model)
    assert left_in(tmp_path) == ["empty", "llama"]


def test_a_copy_of_another_version_is_refused(model: Path) -> None:
    out = copy_of(model)
    raw = read_json(out / "config.json")
    raw["quantization_config"]["version"] = 2
    (out / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CheckpointError) as error:
        foretoken.load(out)
    assert str(error.value) == (
        f"{out}/config.json: quantization_config: version is 2, expected 1; use the Foretoken that wrote it, or "
        "quantise the model again"
    )


def test_a_disk_without_room_is_told_before(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "free_bytes", lambda out: 1_000_000)
    with pytest.raises(InputError) as error:
        copy_of(model)
    assert str(error.value) == (
        f"the copy takes 0.00107 GB, and the disk of {model}-int4-g64 has 0.001 GB free; free some space, or name a "
        "folder on another disk"
    )
