"""Checkpoints on disk: what is read, from where, and every way in which the files can be wrong."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.decoder.config import DecoderConfig, parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.shapes import expected_shapes
from foretoken.decoder.weights import Weights
from foretoken.errors import CheckpointError, ForetokenError, ModelNotFoundError, NumericsError, UnsupportedModelError
from tests.tiny import BASE, random_tensors, tiny_config, tiny_decoder

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
QUERY = "model.layers.1.self_attn.q_proj.weight"


def write(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> Path:
    """A checkpoint with these tensors in one file; returns the file."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**BASE, **changes}), encoding="utf-8")
    save_file(tensors, folder / SINGLE)
    return folder / SINGLE


def write_shards(folder: Path, tensors: dict[str, torch.Tensor], count: int) -> dict[str, str]:
    """The same in several files with an index; returns which tensor lies where."""
    names = sorted(tensors)
    where = {name: f"model-{at % count + 1:05}-of-{count:05}.safetensors" for at, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")
    return where


def tensors_of(**changes: Any) -> dict[str, torch.Tensor]:
    return random_tensors(tiny_config(**changes), seed=1)


def load(folder: Path, dtype: torch.dtype | None = None) -> Weights:
    return load_weights(folder, parse_config(read_json(folder / "config.json")), dtype=dtype)


def refusal(folder: Path, kind: type[ForetokenError]) -> str:
    """The one line that says why a checkpoint is not read."""
    with pytest.raises(ForetokenError) as caught:
        load(folder)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(weights: Weights, tensors: dict[str, torch.Tensor]) -> bool:
    return weights.tensors.keys() == tensors.keys() and all(
        torch.equal(weights.tensors[name], tensor) for name, tensor in tensors.items()
    )


# -- what is read ---------------------------------------------------------------------------------------------------


def test_one_file_and_several_hold_the_same_weights(tmp_path: Path) -> None:
    tensors = tensors_of()
    write(tmp_path / "one", tensors)
    (tmp_path / "several").mkdir()
    write_shards(tmp_path / "several", tensors, 3)
    assert same(load(tmp_path / "one"), tensors)
    assert same(load(tmp_path / "several"), tensors)


def test_tensors_that_the_model_does_not_have_are_left_where_they_are(tmp_path: Path) -> None:
    tensors = tensors_of()
    write(tmp_path, {**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert same(load(tmp_path), tensors)


def test_with_an_index_a_single_file_beside_it_is_not_read(tmp_path: Path) -> None:
    tensors = tensors_of()
    write(tmp_path, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    write_shards(tmp_path, tensors, 2)
    assert same(load(tmp_path), tensors)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("wanted", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_keep_their_type_or_take_the_one_that_is_asked_for(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype | None
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in tensors_of().items()}
    write(tmp_path, tensors)
    weights = load(tmp_path, dtype=wanted)
    assert same(weights, {name: tensor.to(wanted or stored) for name, tensor in tensors.items()})
    assert {tensor.dtype for tensor in weights.tensors.values()} == {wanted or stored}


def test_every_part_of_the_decoder_gets_the_tensor_that_is_named_after_it(tmp_path: Path) -> None:
    changes = {"model_type": "qwen3", "attention_bias": True}
    tensors = tensors_of(**changes)
    write(tmp_path, tensors, **changes)
    weights = load(tmp_path)
    assert len(weights.layers) == BASE["num_hidden_layers"]
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(weights.norm, tensors["model.norm.weight"])
    assert torch.equal(weights.head.weight, tensors["lm_head.weight"])
    for at, layer in enumerate(weights.layers):
        name = f"model.layers.{at}"
        assert layer.query_norm is not None
        assert layer.key_norm is not None
        assert torch.equal(layer.query_norm, tensors[f"{name}.self_attn.q_norm.weight"])
        assert torch.equal(layer.key_norm, tensors[f"{name}.self_attn.k_norm.weight"])
        assert torch.equal(layer.input_norm, tensors[f"{name}.input_layernorm.weight"])
        assert torch.equal(layer.post_norm, tensors[f"{name}.post_attention_layernorm.weight"])
        for part, key in ((layer.query, "q"), (layer.key, "k"), (layer.value, "v"), (layer.output, "o")):
            assert torch.equal(part.weight, tensors[f"{name}.self_attn.{key}_proj.weight"])
            assert part.bias is not None
            assert torch.equal(part.bias, tensors[f"{name}.self_attn.{key}_proj.bias"])
        for part, key in ((layer.gate, "gate"), (layer.up, "up"), (layer.down, "down")):
            assert torch.equal(part.weight, tensors[f"{name}.mlp.{key}_proj.weight"])
            assert part.bias is None


def test_a_tied_head_is_the_embedding_and_is_not_looked_for(tmp_path: Path) -> None:
    tensors = tensors_of(tie_word_embeddings=True)
    assert "lm_head.weight" not in tensors
    write(tmp_path, {**tensors, "lm_head.weight": torch.zeros(97, 32)}, tie_word_embeddings=True)
    for dtype in (None, torch.bfloat16):
        weights = load(tmp_path, dtype=dtype)
        assert weights.head.weight.data_ptr() == weights.embedding.data_ptr()
        assert weights.head.weight.untyped_storage().data_ptr() == weights.embedding.untyped_storage().data_ptr()
    untied = tensors_of()
    write(tmp_path, untied)
    weights = load(tmp_path)
    assert weights.head.weight.data_ptr() != weights.embedding.data_ptr()


# -- where it lies --------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def anonymous_memory() -> int:
    """Bytes of memory of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def file_under(address: int) -> str:
    """The file that is mapped at an address of this process, or ''."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=5)
        start, stop = (int(edge, 16) for edge in parts[0].split("-"))
        if start <= address < stop:
            return parts[5] if len(parts) > 5 else ""
    return ""


@linux
def test_weights_lie_in_the_mapped_file_and_not_in_memory(tmp_path: Path) -> None:
    big = {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 4096, "num_hidden_layers": 2}
    config = tiny_config(**big)
    path = write(tmp_path, {name: torch.ones(shape) for name, shape in expected_shapes(config).items()}, **big)
    size = path.stat().st_size
    assert size > 40e6

    before = anonymous_memory()
    weights = load(tmp_path)
    total = sum(float(tensor.sum()) for tensor in weights.tensors.values())  # every page has been read
    grown = anonymous_memory() - before
    assert total == sum(tensor.numel() for tensor in weights.tensors.values())
    assert grown < size / 2  # a second copy may hide in memory that was freed before, so where they lie is what counts
    for name, tensor in weights.tensors.items():
        assert file_under(tensor.data_ptr()) == str(path), name

    copied = load(tmp_path, dtype=torch.bfloat16)  # or the look at addresses would prove nothing
    for name, tensor in copied.tensors.items():
        assert file_under(tensor.data_ptr()) != str(path), name


@linux
def test_shards_are_mapped_each_from_its_own_file(tmp_path: Path) -> None:
    where = write_shards(tmp_path, tensors_of(), 3)
    weights = load(tmp_path)
    for name, tensor in weights.tensors.items():
        assert file_under(tensor.data_ptr()) == str(tmp_path / where[name]), name


# -- files that are not there ---------------------------------------------------------------------------------------


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    assert refusal(tmp_path, ModelNotFoundError) == (
        f"{tmp_path} has no model.safetensors and no model.safetensors.index.json; expected one of them"
    )


@pytest.mark.parametrize("name", ["pytorch_model.bin", "llama-q4.gguf"])
def test_weights_in_another_format_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    (tmp_path / name).write_bytes(b"x")
    assert refusal(tmp_path, ModelNotFoundError).startswith(f"{tmp_path} holds {name}, which is ")


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, tensors_of(), 3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    assert refusal(tmp_path, ModelNotFoundError) == (
        f"{INDEX} names 3 shards, of which 1 are absent, the first is 'model-00002-of-00003.safetensors'; "
        f"fetch it into {tmp_path}"
    )


# -- files that are damaged -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, 0.3, 0.5, 0.99, -1])
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, keep: float) -> None:
    path = write(tmp_path, tensors_of())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    message = refusal(tmp_path, CheckpointError)
    assert message.startswith(f"{path} cannot be read as safetensors (")
    assert message.endswith("it may be cut short: fetch the file again")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, tensors_of())

    def fails(*given: object, **more: object) -> None:  # as the library does
        raise FileNotFoundError("No such file or directory")

    def forbidden(*given: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("foretoken.decoder.loading.safe_open", fails)
    monkeypatch.setattr(Path, "open", forbidden)
    assert refusal(tmp_path, CheckpointError) == f"{path} cannot be read (Permission denied); see whose file it is"


def test_a_shard_that_was_cut_short_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, tensors_of(), 2)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(tmp_path, CheckpointError).startswith(f"{path} cannot be read as safetensors (")


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", b"\0" * 64])
def test_a_file_that_is_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, tensors_of())
    path.write_bytes(content)
    assert refusal(tmp_path, CheckpointError).startswith(f"{path} cannot be read as safetensors (")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list, expected an object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": ["model.safetensors"]}', "has no weight_map"),
        ('{"weight_map": {"a": 1, "b": "x"}}', "weight_map"),
        ('{"weight_map": {"a": ["x"]}}', "weight_map"),
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, content: str, reason: str) -> None:
    write(tmp_path, tensors_of())
    (tmp_path / INDEX).write_text(content, encoding="utf-8")
    message = refusal(tmp_path, CheckpointError)
    assert message.startswith(str(tmp_path / INDEX))
    assert reason in message


# -- files that do not fit config.json ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [QUERY, "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"])
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    tensors = tensors_of()
    del tensors[name]
    write(tmp_path, tensors)
    assert refusal(tmp_path, CheckpointError) == (
        f"{tmp_path} lacks 1 of {len(tensors) + 1} tensors, the first is {name}; "
        "expected what config.json describes: fetch the checkpoint again"
    )


def test_the_first_of_many_missing_tensors_is_named(tmp_path: Path) -> None:
    write(tmp_path, tensors_of(), num_hidden_layers=5)
    assert "lacks 18 of 48 tensors, the first is model.layers.3.input_layernorm.weight;" in refusal(
        tmp_path, CheckpointError
    )


def test_a_bias_that_config_json_asks_for_is_missed(tmp_path: Path) -> None:
    write(tmp_path, tensors_of(), attention_bias=True)
    assert "the first is model.layers.0.self_attn.q_proj.bias;" in refusal(tmp_path, CheckpointError)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (QUERY, (32, 31), [32, 32]),
        (QUERY, (32,), [32, 32]),
        ("model.layers.0.self_attn.k_proj.weight", (32, 16), [16, 32]),
        ("model.layers.2.mlp.down_proj.weight", (48, 32), [32, 48]),
        ("model.embed_tokens.weight", (96, 32), [97, 32]),
        ("model.norm.weight", (32, 1), [32]),
    ],
)
def test_a_shape_that_does_not_fit_is_named(
    tmp_path: Path, name: str, shape: tuple[int, ...], expected: list[int]
) -> None:
    write(tmp_path, {**tensors_of(), name: torch.zeros(shape)})
    assert refusal(tmp_path, CheckpointError) == (
        f"{name} has shape {list(shape)}, expected {expected} by config.json; "
        "the files do not belong together: fetch the checkpoint again"
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn], ids=str)
def test_weights_of_a_type_that_is_not_supported_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    write(tmp_path, {name: tensor.to(dtype) for name, tensor in tensors_of().items()})
    assert refusal(tmp_path, UnsupportedModelError) == (
        f"weights of type {dtype} are not supported; supported: bfloat16, float16, float32"
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_one_matrix_of_a_type_that_is_not_supported_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    # a quantised matrix beside a float embedding: without its scales its numbers mean nothing
    tensors = tensors_of()
    write(tmp_path, {**tensors, QUERY: (tensors[QUERY] * 8).to(dtype)})
    assert str(dtype) in refusal(tmp_path, UnsupportedModelError)


# -- numbers that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [QUERY, "model.norm.weight", "lm_head.weight"])
def test_the_first_tensor_that_holds_no_numbers_is_named(tmp_path: Path, name: str, number: float) -> None:
    tensors = tensors_of()
    size = tensors[name].numel()
    tensors[name].view(-1)[[1, 3]] = number
    write(tmp_path, tensors)
    config, weights = tiny_config(), load(tmp_path)
    assert weights.first_not_finite() == f"2 of {size} numbers in {name}"
    error = Decoder(config, weights, threads=1).nan_error()
    assert isinstance(error, NumericsError)
    assert str(error) == (
        f"the model's logits hold NaN: 2 of {size} numbers in {name} are NaN or infinite; fetch the checkpoint again"
    )


def test_of_two_such_tensors_the_one_that_is_used_first_is_named() -> None:
    config: DecoderConfig = tiny_config()
    tensors = random_tensors(config, seed=1)
    for name in ("lm_head.weight", QUERY):
        tensors[name][0, 0] = torch.nan
    decoder = tiny_decoder()
    decoder.weights.tensors.update(tensors)
    assert decoder.weights.first_not_finite() == f"1 of 1024 numbers in {QUERY}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_nan_from_finite_weights_is_blamed_on_their_type(dtype: torch.dtype) -> None:
    decoder = tiny_decoder(dtype=dtype)
    assert decoder.weights.first_not_finite() is None
    error = decoder.nan_error()
    assert isinstance(error, NumericsError)
    name = str(dtype).removeprefix("torch.")
    advice = {"float16": "load it as float32", "float32": "the checkpoint is of no use as it is"}[name]
    assert str(error) == (f"the model's logits hold NaN though its weights are finite: they overflow {name}; {advice}")


def test_what_is_written_is_what_safetensors_reads(tmp_path: Path) -> None:
    # the tests above stand on files that `write` makes
    tensors = tensors_of()
    assert load_file(write(tmp_path, tensors)).keys() == tensors.keys()
