"""Layers that are read while a pass runs: the bits are those of the model in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from foretoken.decoder.config import read_config
from foretoken.decoder.decoder import Decoder
from foretoken.decoder.loading import load_weights
from foretoken.decoder.low_bit import quantised
from foretoken.decoder.streaming import Stored, load_streamed
from foretoken.errors import CheckpointError, ContractError, SettingError
from foretoken.offload.stream import Streamed
from tests.decoder.low_bit import INT4, SHAPES, made, outcomes
from tests.decoder.test_low_bit_checkpoints import write as write_low_bit
from tests.tiny import BASE, needs_native, one_thread

__all__ = ["one_thread"]


def write(folder: Path, shards: int = 1, **changes: Any) -> None:
    """A checkpoint of three layers."""
    _, weights = made(num_hidden_layers=3, **changes)
    raw = {**BASE, "num_hidden_layers": 3, **changes}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    if shards == 1:
        save_file(weights.tensors, folder / "model.safetensors")
        return
    index = {name: f"model-{at % shards}.safetensors" for at, name in enumerate(weights.tensors)}
    for file in set(index.values()):
        save_file({name: t for name, t in weights.tensors.items() if index[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), encoding="utf-8")


def stored(folder: Path) -> Stored:
    return Stored.of(folder, read_config(folder))


def room(its: Stored) -> int:
    """For the largest part, and a little more."""
    return max(its.bytes_read(part) for part in range(its.parts)) + 8192


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("streamed", [tuple(range(12)), (1,), (0, 6, 8)], ids=str)
def test_passes_have_the_bits_of_the_model_in_memory(
    tmp_path: Path, shape: str, streamed: tuple[int, ...], arithmetic: str
) -> None:
    write(tmp_path, **SHAPES[shape])
    config, its = read_config(tmp_path), stored(tmp_path)
    expected = outcomes(Decoder(config, load_weights(tmp_path, config), threads=1, arithmetic=arithmetic), (40, 1))
    weights = load_streamed(its, streamed, room(its), rows=arithmetic == "pytorch")  # which knows no other layout
    decoder = Decoder(config, weights, threads=1, arithmetic=arithmetic)
    assert decoder.home == "copied and streamed"
    assert outcomes(decoder, (40, 1)) == expected
    (stream,) = {home.stream for home in weights.homes if isinstance(home, Streamed)}
    assert stream.traffic.bytes >= 41 * sum(its.bytes_read(part) for part in streamed), "each pass has read them"


def test_a_model_in_shards_is_streamed_from_all_of_them(tmp_path: Path) -> None:
    write(tmp_path, shards=2)
    config, its = read_config(tmp_path), stored(tmp_path)
    expected = outcomes(Decoder(config, load_weights(tmp_path, config), threads=1), (40,))
    assert outcomes(Decoder(config, load_streamed(its, range(12), room(its)), threads=1), (40,)) == expected


def test_with_nothing_streamed_all_is_in_memory(tmp_path: Path) -> None:
    write(tmp_path)
    config = read_config(tmp_path)
    weights = load_streamed(stored(tmp_path), (), 0)
    assert weights.home == "copied"
    plain = load_weights(tmp_path, config)
    assert all(torch.equal(weights.tensors[name], t) for name, t in plain.tensors.items() if t.ndim == 1)
    assert outcomes(Decoder(config, weights, threads=1), (3,)) == outcomes(Decoder(config, plain, threads=1), (3,))


@needs_native
@pytest.mark.parametrize("streamed", [tuple(range(8)), (1,)], ids=str)
def test_a_low_bit_model_is_streamed_too(tmp_path: Path, streamed: tuple[int, ...]) -> None:
    low = write_low_bit(tmp_path, INT4)
    config, its = read_config(tmp_path), stored(tmp_path)
    expected = outcomes(Decoder(config, low, threads=1), (40, 1))
    weights = load_streamed(its, streamed, room(its))
    assert outcomes(Decoder(config, weights, threads=1), (40, 1)) == expected
    with pytest.raises(ContractError, match="cannot come in while a pass runs; install the native module"):
        Decoder(config, weights, threads=1, arithmetic="pytorch")


def test_a_low_bit_model_that_is_damaged_is_refused_before_it_runs(tmp_path: Path) -> None:
    write_low_bit(tmp_path, INT4)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight.scales"].fill_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors")
    its = stored(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj"):
        load_streamed(its, range(8), room(its))


@needs_native
def test_a_copy_is_cast_from_layers_as_they_come_in(tmp_path: Path) -> None:
    write(tmp_path)
    config, its = read_config(tmp_path), stored(tmp_path)
    plain = load_weights(tmp_path, config)
    weights = load_streamed(its, range(4, 12), room(its), rows=True)
    for own in ((), (0,), (1,)):
        one, other = (Decoder(config, quantised(w, config, INT4, own=own), threads=1) for w in (weights, plain))
        assert outcomes(one, (3,)) == outcomes(other, (3,))


def test_a_buffer_that_is_too_small_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(SettingError, match="a buffer of 4096 bytes has no room for a part of a layer"):
        load_streamed(stored(tmp_path), (1,), 4096)


def test_what_lies_elsewhere_than_the_header_says_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    its = stored(tmp_path)
    assert its.bytes_of(1) == its.bytes_of(2) == its.bytes_of(3) == 48 * 32 * 2
    assert its.bytes_read(1) >= its.bytes_of(1)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
        stored(tmp_path)


def test_a_change_of_the_file_is_seen(tmp_path: Path) -> None:
    write(tmp_path)
    its = stored(tmp_path)
    weights = load_streamed(its, (1,), room(its))
    assert weights.mapped is not None
    assert weights.mapped.changed() is None
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "has changed since it was loaded" in str(weights.mapped.changed())
