"""Weights that are verified: every byte that comes from the disk, when it is loaded and in each pass."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

import foretoken
from foretoken.common.hashes import sha256
from foretoken.common.source import EMBEDDED
from foretoken.errors import CheckpointError, SettingError
from foretoken.offload import verified
from foretoken.offload.stream import Streamed
from tests.files import flip

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
HOMES: list[dict[str, Any]] = [{}, {"weights": "copied"}, {"stream_layers": "all"}, {"memory": "3GiB"}]


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A model as a hub's cache keeps it: its weights are a link to a file that is called by its SHA-256."""
    folder, blobs = tmp_path / "models--owner--name" / "snapshots" / "0123", tmp_path / "models--owner--name" / "blobs"
    shutil.copytree(EMBEDDED["stdlib-1m"], folder)
    blobs.mkdir()
    weights = folder / "model.safetensors"
    weights.rename(blobs / sha256(weights))
    weights.symlink_to(blobs / next(blobs.iterdir()).name)
    return folder


def middle_of(model: foretoken.Model) -> int:
    """Some byte of a layer that is read in each pass."""
    home = model.target.weights.homes[4]
    assert isinstance(home, Streamed)
    (extent,) = home.stream.units[home.unit]
    return (extent.start + extent.stop) // 2


@pytest.mark.parametrize("home", HOMES, ids=str)
def test_a_flipped_bit_is_found_at_load_and_only_if_that_was_asked_for(
    home: dict[str, Any], snapshot: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound = foretoken.load(snapshot, draft="none", verify_weights=True, **home)
    assert sound.generate(PROMPT, max_new_tokens=4).tokens
    assert "hash is known" not in caplog.text
    blob = (snapshot / "model.safetensors").resolve()
    flip(blob, blob.stat().st_size // 2)
    with pytest.raises(CheckpointError) as error:
        foretoken.load(snapshot, draft="none", verify_weights=True, **home)
    assert str(error.value) == (
        f"{snapshot / 'model.safetensors'} is damaged: its SHA-256 is {sha256(blob)}, and the hub gave {blob.name}; "
        f"remove {blob} and fetch the model again"
    )
    assert foretoken.load(snapshot, draft="none", **home).generate(PROMPT, max_new_tokens=4).tokens


def test_a_draft_s_weights_are_verified_too(snapshot: Path) -> None:
    assert foretoken.load("stdlib-7m", draft=str(snapshot), verify_weights=True).levels
    flip((snapshot / "model.safetensors").resolve(), 1_000_000)
    with pytest.raises(CheckpointError, match="is damaged: its SHA-256 is"):
        foretoken.load("stdlib-7m", draft=str(snapshot), verify_weights=True)


@pytest.mark.parametrize("draft", ["none", "subspec"])
def test_a_bit_that_flips_between_two_passes_ends_the_generation_until_it_is_put_back(
    draft: str, snapshot: Path
) -> None:
    expected = foretoken.load(snapshot, draft="none").generate(PROMPT, max_new_tokens=200, ignore_eos=True).tokens
    blob = (snapshot / "model.safetensors").resolve()
    model = foretoken.load(snapshot, draft=draft, stream_layers="all", verify_weights=True)
    at = middle_of(model)
    for _ in range(2):
        stream, came = model.stream(PROMPT, max_new_tokens=200, ignore_eos=True), []
        came += [next(stream).token for _ in range(5)]
        flip(blob, at)
        with pytest.raises(CheckpointError, match=r"gives other bytes at [0-9,]+ to [0-9,]+ than when it was loaded"):
            came += [piece.token for piece in stream]
        assert 5 <= len(came) < 200
        assert tuple(came) == expected[: len(came)], "nothing came that the damaged weights had said"
        flip(blob, at)
        assert model.generate(PROMPT, max_new_tokens=200, ignore_eos=True).tokens == expected


def test_without_being_asked_nothing_is_computed(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, real = [], zlib.crc32

    def crc32(data: Any, value: int = 0) -> int:
        taken.append(len(data))
        return real(data, value)

    monkeypatch.setattr(verified.zlib, "crc32", crc32)
    model = foretoken.load(snapshot, draft="none", stream_layers="all")
    before = model.generate(PROMPT, max_new_tokens=20).tokens
    flip((snapshot / "model.safetensors").resolve(), middle_of(model))
    model.generate(PROMPT, max_new_tokens=20)  # whatever it says: no error is promised
    assert taken == []
    flip((snapshot / "model.safetensors").resolve(), middle_of(model))
    verifying = foretoken.load(snapshot, draft="none", stream_layers="all", verify_weights=True)
    assert verifying.generate(PROMPT, max_new_tokens=20).tokens == before
    assert sum(taken) > 2 * (snapshot / "model.safetensors").stat().st_size


def test_a_model_without_a_published_hash_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    foretoken.load("stdlib-1m", draft="none", stream_layers="all", verify_weights=True)
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        f"no published hash is known for model.safetensors in {EMBEDDED['stdlib-1m']}"
    ]


def test_it_is_on_or_off() -> None:
    with pytest.raises(SettingError, match="verify_weights is 'yes', expected True or False"):
        foretoken.load("stdlib-1m", verify_weights="yes")
