"""A record is proven with the files that it names, and no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import foretoken
from foretoken.common import source
from foretoken.common.source import EMBEDDED
from tests.transcript.records import MODEL, refusal


def test_another_model_is_refused_by_the_first_file_that_differs(whole: Path) -> None:
    message = refusal(whole, "stdlib-7m")
    assert message.startswith(f"config.json in {EMBEDDED['stdlib-7m']} is not that of {whole} (SHA-256 ")


def test_a_bit_of_the_weights_is_noticed(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED[MODEL], folder)
    assert foretoken.verify(whole, folder).verified
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    assert refusal(whole, folder).startswith(f"model.safetensors in {folder} is not that of {whole} (SHA-256 ")


def test_a_file_too_many_or_too_few_is_named(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(EMBEDDED[MODEL], folder)
    (folder / "README.md").write_text("decides nothing", encoding="utf-8")
    assert foretoken.verify(whole, folder).verified
    (folder / "added_tokens.json").write_text("{}", encoding="utf-8")
    assert refusal(whole, folder) == (
        f"{folder} has added_tokens.json, and the model of {whole} had not; give that one with --model"
    )
    (folder / "added_tokens.json").unlink()
    (folder / "generation_config.json").unlink()
    assert refusal(whole, folder) == (
        f"the model of {whole} had a file 'generation_config.json', which is not here; give that model with --model"
    )


def test_of_a_hub_the_configuration_alone_is_fetched_to_see_that_it_is_another_model(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[list[str]] = []
    shutil.copy(EMBEDDED["stdlib-7m"] / "config.json", tmp_path)

    def download(model: str, revision: str | None, files: list[str]) -> Path:
        fetched.append(files)
        return tmp_path

    monkeypatch.setattr(source, "_download", download)
    assert refusal(whole, "owner/name").startswith("config.json in")
    assert fetched == [["config.json"]]
