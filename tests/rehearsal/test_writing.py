"""Rehearsals in files: whole or not at all, a few rows at a time, and refused before anything is written."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.copies.fingerprint import fingerprint
from foretoken.copies.tensors import TensorFile
from foretoken.decoder.config import parse_config, read_json
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.rows import chain
from foretoken.decoder.shards import INDEX
from foretoken.errors import CheckpointError, InputError, SettingError, UnsupportedModelError
from foretoken.rehearsal import honest, write
from foretoken.rehearsal.shapes import shape_of
from tests.copies.conftest import copy_of
from tests.rehearsal.conftest import ROOM, left_in, rehearse, small

STATUS = Path("/proc/self/status")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small(tmp_path / "small")


def test_the_configuration_is_the_shapes_with_the_functions_positions_and_tokens(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 300.0, "factor": 2.0}
    model = small(tmp_path / "small", eos_token_id=[4, 5], pad_token_id=6, rope_parameters=rope)
    (model / "generation_config.json").write_text('{"eos_token_id": 7}', encoding="utf-8")
    (model / "notes.txt").touch()
    out = rehearse(model, tmp_path / "out", f"{ROOM},tied=yes", name="owner/small", seed=3)
    raw = read_json(out / "config.json")
    assert raw.pop("rehearsal") == {
        "shape": f"{ROOM},tied=yes",
        "source": {"name": "owner/small", "sha256": fingerprint(model, parse_config(read_json(model / "config.json")))},
        "placement": "spread",
        "layers": [0, 1, 3],
        "seed": 3,
        "tokenizer": "llama",
    }
    assert raw == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 80,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "vocab_size": 131,
        "valid_vocab_size": 97,
        "rms_norm_eps": 1e-6 / 4,
        "tie_word_embeddings": False,  # the small model's output layer is its own
        "max_position_embeddings": 512,
        "use_cache": True,
        "dtype": "float32",
        "eos_token_id": [4, 5],
        "pad_token_id": 6,
        "rope_parameters": rope,
        "attention_bias": False,
        "mlp_bias": False,
    }
    assert left_in(out) == ["config.json", "generation_config.json", "model.safetensors"]
    assert (out / "generation_config.json").read_text(encoding="utf-8") == '{"eos_token_id": 7}'


def test_it_is_divided_into_files_as_others_divide_theirs(model: Path, tmp_path: Path) -> None:
    whole = load_file(rehearse(model, tmp_path / "whole") / "model.safetensors")
    out = rehearse(model, tmp_path / "out", shard=200_000)
    mapping = read_json(out / INDEX)["weight_map"]
    assert sorted(mapping) == sorted(whole)
    assert len(set(mapping.values())) > 3
    for name, file in mapping.items():
        assert torch.equal(load_file(out / file)[name], whole[name])
    config = parse_config(read_json(out / "config.json"))
    assert fingerprint(out, config) == fingerprint(tmp_path / "whole", config)


def test_rows_come_some_at_a_time_without_a_trace(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (rehearse(model, tmp_path / "whole") / "model.safetensors").read_bytes()
    monkeypatch.setattr(write, "_TOGETHER", 128 * 7)
    assert (rehearse(model, tmp_path / "out") / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_type_of_the_numbers_is_the_small_models(dtype: torch.dtype, tmp_path: Path) -> None:
    model = small(tmp_path / "small")
    tensors = load_file(model / "model.safetensors")
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, model / "model.safetensors")
    out = rehearse(model, tmp_path / "out")
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {dtype}
    assert read_json(out / "config.json")["dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured as Linux tells it")
def test_little_of_it_is_in_memory_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def own() -> int:
        return 1024 * int(STATUS.read_text(encoding="utf-8").split("RssAnon:")[1].split()[0])

    seen: list[int] = []

    class Watched(TensorFile):
        def write(self, name: str, piece: torch.Tensor) -> None:
            super().write(name, piece)
            seen.append(own())

    numbers = "hidden=1024,layers=3,heads=16,kv-heads=4,intermediate=4096,vocab=64000,head-dim=64,tied=yes"
    plan = write.plan(EMBEDDED["stdlib-1m"], tmp_path / "out", write.Asked(shape_of(numbers)))
    monkeypatch.setattr(write, "TensorFile", Watched)
    before = own()
    write.write(plan)
    assert plan.bytes > 220e6
    assert len(seen) > 30
    assert max(seen) - before < 150e6


def test_a_copy_of_a_rehearsal_says_whose_it_is_and_drafts_for_it(talking: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(talking, tmp_path / "big"))
    copy = copy_of(folder, "int4")
    assert honest.about(copy) == honest.about(folder)
    assert read_json(copy / "config.json")["valid_vocab_size"] == 4096
    plain = foretoken.load(folder, draft="none").generate("def add(", max_new_tokens=24)
    drafted = foretoken.load(folder, draft="int4", pace="fixed").generate("def add(", max_new_tokens=24)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted_tokens > 5
    assert foretoken.load(copy, draft="lookup", pace="fixed").generate("def add(", max_new_tokens=8).tokens


# -- what is refused ------------------------------------------------------------------------------------------------


def shape_with(**changes: Any) -> str:
    numbers = dict(part.split("=") for part in ROOM.split(","))
    return ",".join(f"{key}={value}" for key, value in {**numbers, **changes}.items())


@pytest.mark.parametrize(
    ("changes", "shape", "reason"),
    [
        ({}, {"layers": 2}, "3 layers, the shape has 2"),
        ({}, {"hidden": 16}, "32 hidden channels, the shape has 16"),
        ({}, {"intermediate": 40}, "48 intermediate, the shape has 40"),
        ({}, {"vocab": 96}, "97 rows of vocabulary, the shape has 96"),
        ({}, {"head-dim": 12}, "heads of 8, those of the shape are 12, no multiple"),
        ({}, {"head-dim": 4}, "heads of 8, those of the shape are 4, no multiple"),
        ({}, {"kv-heads": 1}, "2 key/value heads, the shape has 1"),
        ({}, {"heads": 2, "kv-heads": 2}, "2 key/value heads, each 2 times for its queries, the shape has 2"),
        ({}, {"layers": 1, "vocab": 9}, "3 layers, the shape has 1; 97 rows of vocabulary, the shape has 9"),
    ],
)
def test_a_shape_without_room_is_told_with_all_that_is_too_small(
    changes: dict[str, Any], shape: dict[str, int], reason: str, tmp_path: Path
) -> None:
    model, numbers = small(tmp_path / "small", **changes), shape_with(**shape)
    with pytest.raises(InputError) as error:
        rehearse(model, tmp_path / "out", numbers)
    assert str(error.value) == f"small does not fit into {numbers}: it has {reason}. Name a larger shape"
    assert left_in(tmp_path) == ["small"]


YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}


@pytest.mark.parametrize(
    ("changes", "shape", "reason"),
    [
        ({"model_type": "qwen3"}, {}, "small is of the family qwen3; a rehearsal can be made of llama and qwen2"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            {},
            "small has sliding windows; a rehearsal can be made of models without",
        ),
        ({"mlp_bias": True}, {"type": "qwen2"}, "small has biases that qwen2 has not, the family of {shape}; name "),
        ({"attention_bias": True}, {"type": "qwen2"}, "small has biases that qwen2 has not, the family of {shape}"),
        (YARN, {"head-dim": 16}, "small has yarn positions, which depend on the head's size, and {shape} has heads of"),
    ],
)
def test_a_function_that_the_shapes_family_has_not_is_refused(
    changes: dict[str, Any], shape: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model, numbers = small(tmp_path / "small", **changes), shape_with(**shape)
    with pytest.raises(UnsupportedModelError) as error:
        rehearse(model, tmp_path / "out", numbers)
    assert str(error.value).startswith(reason.format(shape=numbers))
    assert left_in(tmp_path) == ["small"]


def test_a_copy_a_rehearsal_and_an_unknown_placement_are_refused(model: Path, tmp_path: Path) -> None:
    copy, rehearsal = copy_of(model), rehearse(model, tmp_path / "rehearsal")
    with pytest.raises(UnsupportedModelError, match="is in a low-bit format, int4-g64; rehearse the model that it was"):
        rehearse(copy, tmp_path / "out")
    with pytest.raises(UnsupportedModelError, match="rehearsal is a rehearsal already, of small; rehearse the model"):
        rehearse(rehearsal, tmp_path / "out")
    with pytest.raises(SettingError, match=r"the placement 'last' is not known \(known: first, spread\)"):
        rehearse(model, tmp_path / "out", placement="last")
    assert left_in(tmp_path) == ["rehearsal", "small", "small-int4-g64"]


def test_a_disk_without_room_is_told_before(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "free_bytes", lambda out: 1_000_000)
    with pytest.raises(InputError) as error:
        rehearse(model, tmp_path / "out")
    assert "GB, and the disk of" in str(error.value)
    assert str(error.value).startswith("the rehearsal takes 0.00")
    assert str(error.value).endswith("has 0.001 GB free; free some space, or name a folder on another disk")
    assert left_in(tmp_path) == ["small"]


def test_only_a_rehearsal_is_replaced_and_only_if_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    out = rehearse(model, tmp_path / "out")
    with pytest.raises(InputError) as error:
        rehearse(model, out)
    assert str(error.value) == (
        f"{out} is there, a rehearsal in the shape of {ROOM}; give --force to replace it, or name another folder"
    )
    rehearse(model, out, replace=True, seed=4)
    assert read_json(out / "config.json")["rehearsal"]["seed"] == 4
    (out / "mine.txt").touch()
    with pytest.raises(InputError, match=r"holds 'mine\.txt', which no rehearsal of ours has"):
        rehearse(model, out, replace=True)
    for other in (model, copy_of(rehearse(model, tmp_path / "another"))):
        with pytest.raises(InputError, match="is there, and is no rehearsal of a model; expected the name of a"):
            rehearse(model, other, replace=True)
    assert (rehearse(model, tmp_path / "made" / "for it" / "out") / "config.json").is_file()


def breaking(function: Callable[..., Any], after: int, reason: BaseException) -> Callable[..., Any]:
    calls = iter(range(after))

    def called(*args: Any, **named: Any) -> Any:
        if next(calls, None) is None:
            raise reason
        return function(*args, **named)

    return called


@pytest.mark.parametrize("reason", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("where", "name", "after"), [(TensorFile, "write", 17), (TensorFile, "close", 1), (write, "write_json", 1)]
)
def test_what_breaks_off_leaves_nothing(
    where: Any, name: str, after: int, reason: BaseException, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = model.with_name("out")
    plan = write.plan(model, out, write.Asked(shape_of(ROOM)), shard=200_000)
    assert len(plan.shards) > 2
    monkeypatch.setattr(where, name, breaking(getattr(where, name), after, reason))
    with pytest.raises((InputError, KeyboardInterrupt)) as error:
        write.write(plan)
    if isinstance(reason, OSError):
        assert str(error.value) == (
            f"the rehearsal cannot be written to {out} (No space left on device); free some space, or name a folder "
            "elsewhere"
        )
    assert left_in(model.parent) == ["small"]


def test_a_number_that_is_none_is_told_with_its_tensor_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^model\.layers\.1\.mlp\.up_proj\.weight holds numbers that are NaN or"):
        rehearse(model, tmp_path / "out")
    assert left_in(tmp_path) == ["small"]


def test_the_padding_token_is_one_that_is_not_chosen(tmp_path: Path) -> None:
    given = [
        ({"pad_token_id": 3, "bos_token_id": 4}, {"pad_token_id": 5}, 3),
        ({"bos_token_id": 4}, {"pad_token_id": 5}, 5),
        ({"bos_token_id": 4, "pad_token_id": None}, {}, 4),
        ({"bos_token_id": 97, "pad_token_id": -1}, {}, 96),
        ({"valid_vocab_size": 90}, {}, 89),
    ]
    for i, (changes, generation, token) in enumerate(given):
        model = small(tmp_path / str(i), **changes)
        (model / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
        embedding = load_file(rehearse(model, tmp_path / f"out{i}") / "model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(embedding[97:], embedding[token].expand(34, -1))


SMAPS = Path("/proc/self/smaps")


@pytest.mark.skipif(not SMAPS.exists(), reason="what is in memory of a mapped file is known as Linux tells it")
def test_every_weight_is_read_in_a_pass_those_of_padding_too(tmp_path: Path) -> None:
    numbers = "hidden=256,layers=4,heads=8,kv-heads=4,intermediate=640,vocab=20000,head-dim=64"
    out = rehearse(EMBEDDED["stdlib-1m"], tmp_path / "out", numbers)
    embedding = 20000 * 256 * 2  # of which a pass reads a row
    weights = (out / "model.safetensors").stat().st_size - embedding

    def mapped() -> int:
        regions = SMAPS.read_text(encoding="utf-8").split(str(out / "model.safetensors"))[1:]
        return sum(1024 * int(region.split("Rss:")[1].split()[0]) for region in regions)

    config = parse_config(read_json(out / "config.json"))
    decoder = Decoder(config, load_weights(out, config), threads=1)
    assert mapped() < weights / 2
    decoder.run(chain(decoder.new_cache(), [3]))
    assert mapped() > 0.95 * weights


def test_another_generator_has_another_version(model: Path, tmp_path: Path) -> None:
    """`foretoken reproduce` uses a rehearsal again by the version of what wrote it."""
    out = rehearse(model, tmp_path / "out", ROOM, seed=3)
    tensors = [tensor.double().flatten() for _, tensor in sorted(load_file(out / "model.safetensors").items())]
    every = torch.cat(tensors)
    seen = float((every * torch.arange(len(every)).mul(0.1).cos()).sum())  # what moves to another place shows, too
    assert (write.VERSION, len(every), seen) == (2, 393344, pytest.approx(-104.653459, rel=1e-5)), (
        "rehearsals come out with other numbers; raise VERSION in rehearsal/write.py, and note here what comes out now"
    )
