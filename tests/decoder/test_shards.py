"""An index names its shards: files that are in the checkpoint's folder, or in folders of it, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foretoken.decoder.config import read_config
from foretoken.decoder.loading import load_weights
from foretoken.decoder.shards import INDEX
from foretoken.errors import CheckpointError, ForetokenError, ModelNotFoundError
from tests.tiny import BASE, random_tensors, tiny_config

ELSEWHERE = "expected a file in the folder of the checkpoint: fetch the index again"


def sharded(folder: Path, shard: str, file: Path | None = None) -> dict[str, torch.Tensor]:
    """A checkpoint whose index names one shard; file: where that is."""
    tensors = random_tensors(tiny_config(), seed=1)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE), encoding="utf-8")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, shard)}), encoding="utf-8")
    if file is not None:
        file.parent.mkdir(exist_ok=True)
        save_file(tensors, file)
    return tensors


def refusal(folder: Path, kind: type[ForetokenError] = CheckpointError) -> str:
    with pytest.raises(ForetokenError) as error:
        load_weights(folder, read_config(folder))
    assert type(error.value) is kind
    return str(error.value)


@pytest.mark.parametrize("shard", ["part/model-1.safetensors", "./model-1.safetensors"])
def test_a_shard_may_lie_in_a_folder_of_the_checkpoints(tmp_path: Path, shard: str) -> None:
    tensors = sharded(tmp_path, shard, tmp_path / shard)
    found = load_weights(tmp_path, read_config(tmp_path)).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_shard_may_be_a_link_as_a_hubs_are(tmp_path: Path) -> None:
    sharded(tmp_path / "model", "model-1.safetensors", tmp_path / "blobs" / "1")
    (tmp_path / "model" / "model-1.safetensors").symlink_to("../blobs/1")
    assert load_weights(tmp_path / "model", read_config(tmp_path / "model")).tensors


def test_a_shard_with_an_absolute_path_is_refused_though_it_is_there(tmp_path: Path) -> None:
    for place in (tmp_path / "model" / "model-1.safetensors", tmp_path / "else" / "model-1.safetensors"):
        sharded(tmp_path / "model", str(place), place)
        name = str(place) if len(str(place)) <= 58 else f"{str(place)[:57]}…"
        assert refusal(tmp_path / "model") == f"{INDEX} in {tmp_path / 'model'} names the shard '{name}'; {ELSEWHERE}"


@pytest.mark.parametrize("shard", ["../model-1.safetensors", "part/../../model-1.safetensors", "..", "", "."])
def test_a_shard_that_is_outside_the_folder_or_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    sharded(tmp_path / "model", shard, tmp_path / "model-1.safetensors")
    (tmp_path / "model" / "part").mkdir()
    assert refusal(tmp_path / "model") == f"{INDEX} in {tmp_path / 'model'} names the shard {shard!r}; {ELSEWHERE}"


@pytest.mark.parametrize("shard", ["x" * 5000, "x/" * 2500 + "x", "a\0b"])
def test_a_shard_whose_name_no_file_has_is_refused(tmp_path: Path, shard: str) -> None:
    sharded(tmp_path, shard)
    message = refusal(tmp_path)
    name = repr(shard) if len(shard) < 50 else f"'{shard[:57]}…'"
    assert message.startswith(f"{INDEX} in {tmp_path} names the shard {name}, which cannot be read (")
    assert message.endswith("); fetch the index again")


def test_a_shard_that_is_not_there_is_absent_whatever_its_name(tmp_path: Path) -> None:
    for shard in ("x" * 200, "config.json/x", "."):
        sharded(tmp_path, f"part/{shard}")
        named = f"'part/{shard}'" if len(shard) < 50 else f"'part/{shard[:52]}…'"
        assert refusal(tmp_path, ModelNotFoundError) == (
            f"{INDEX} names 1 shards, of which 1 are absent, the first is {named}; fetch it into {tmp_path}"
        )
