"""What users have instead of a checkpoint is named as what it is, with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import ModelNotFoundError


def refused(model: Path) -> str:
    with pytest.raises(ModelNotFoundError) as error:
        foretoken.load(model)
    return str(error.value)


def test_a_gguf_file_and_a_folder_of_them(tmp_path: Path) -> None:
    file = tmp_path / "model-Q4_0.gguf"
    file.write_bytes(b"GGUF")
    expected = "GGUF, llama.cpp's format, which Foretoken does not read; name the checkpoint that it was made of"
    assert refused(file).startswith(f"{file} is {expected}")
    assert refused(tmp_path).startswith(f"{tmp_path} holds model-Q4_0.gguf, which is {expected}")


@pytest.mark.parametrize("with_config", [False, True])
def test_pickles(tmp_path: Path, with_config: bool) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    if with_config:
        config = json.loads((EMBEDDED["stdlib-1m"] / "config.json").read_text(encoding="utf-8"))
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    message = refused(tmp_path)
    assert message.startswith(
        f"{tmp_path} holds pytorch_model.bin, which is PyTorch's pickles, which may run a program"
    )
    assert message.endswith("AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)")


@pytest.mark.parametrize(
    ("said", "of"),
    [({"base_model_name_or_path": "owner/base"}, " of 'owner/base'"), ({}, ""), ({"base_model_name_or_path": 3}, "")],
)
def test_a_lora_adapter(tmp_path: Path, said: dict[str, object], of: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(said), encoding="utf-8")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    message = refused(tmp_path)
    assert message.startswith(f"{tmp_path} is a LoRA adapter{of}, which is no model by itself; merge it")


def test_an_adapter_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{", encoding="utf-8")
    assert refused(tmp_path).startswith(f"{tmp_path} is a LoRA adapter, which")


def test_any_other_folder_is_told_what_was_expected(tmp_path: Path) -> None:
    assert refused(tmp_path).startswith(f"{tmp_path} has no config.json; expected a Hugging Face checkpoint")
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    assert "notes.txt is a file, expected the folder of a Hugging Face checkpoint" in refused(tmp_path / "notes.txt")
