"""What a record says, and how it gets into its file."""

from __future__ import annotations

import errno
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError, NumericsError, PromptError, TranscriptError
from foretoken.kernels.reference import DEFINITION
from foretoken.settings.generate import GenerateSettings
from foretoken.transcript.layout import _FIELDS
from foretoken.transcript.record import write
from tests.transcript.records import COUNT, ENGINE, MODEL, PROMPT


def test_a_record_says_what_was_generated_from_what_and_how(whole: Path) -> None:
    told = json.loads(whole.read_text(encoding="utf-8"))
    model = foretoken.load(MODEL)
    done = model.generate(PROMPT, max_new_tokens=COUNT, hash_logits=True)
    assert (told["format"], told["version"]) == ("foretoken transcript", 2)
    assert (told["model"], told["revision"]) == (MODEL, None)
    assert told["prompt"] == {"text": PROMPT, "tokens": list(model.tokens_of(PROMPT))}
    assert told["settings"] == {
        "draft": "lookup",
        "num_speculative_tokens": 8,
        "dtype": "bfloat16",
        "device": "cpu",
        "promise": "auto",
        "weights": "auto",
        "prefill_chunk": 512,
        "cache": True,
        "context": model.context_length,
        "max_new_tokens": COUNT,
        "ignore_eos": False,
        "stop": [],
        "keep_stop": False,
        "stop_tokens": [],
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "seed": None,
        "regex": None,
        "json_schema": None,
        "grammar": None,
    }
    assert (told["promise"], told["tokens"], told["text"]) == ("exact", list(done.tokens), done.text)
    assert (told["finish_reason"], told["logits_sha256"]) == ("length", done.logits_sha256)
    assert told["stop_string"] is None
    if ENGINE == "native":
        its = {"engine": "native", "architecture": platform.machine(), "definition": DEFINITION}
        assert told["arithmetic"] == its
    else:
        assert told["arithmetic"] == {
            "engine": "pytorch",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": told["provenance"]["machine"]["processor"],
        }
    assert list(told["files"]) == [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ]
    listing = subprocess.run(
        ["sha256sum", EMBEDDED[MODEL] / "model.safetensors"], capture_output=True, text=True, check=False
    )
    if listing.returncode == 0:
        assert listing.stdout.split()[0] == told["files"]["model.safetensors"]


def test_every_field_that_is_read_is_written(whole: Path) -> None:
    told = json.loads(whole.read_text(encoding="utf-8"))
    read = {name.split(".")[0] for name in _FIELDS}
    assert read | {"format", "version", "pace"} == set(told), "`pace` is read by a pace that replays it"


def test_a_file_is_replaced_when_the_record_is_complete_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    model = foretoken.load(MODEL)
    foretoken.record(path, model, "what was there", max_new_tokens=1)
    before = path.read_bytes()
    foreign = tmp_path / "notes.txt"
    foreign.write_text("no record", encoding="utf-8")
    with pytest.raises(TranscriptError, match="is there, and is no record; name another file, or remove it"):
        foretoken.record(foreign, model, PROMPT)
    foreign.unlink()

    def break_off(*args: Any, **options: Any) -> None:
        raise NumericsError("broken off")

    with monkeypatch.context() as patch:
        patch.setattr(model, "generate", break_off)
        with pytest.raises(NumericsError):
            foretoken.record(path, model, PROMPT)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TranscriptError) as error:
            foretoken.record(path, model, PROMPT, max_new_tokens=2)
    assert str(error.value) == (
        f"the record cannot be written to {path} (No space left on device); free some space, or name a file elsewhere"
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path], "and nothing lies beside it"
    foretoken.record(path, model, PROMPT, max_new_tokens=2)
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_leading_to_the_record(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "elsewhere" / "record.json"
    link.symlink_to(target)
    foretoken.record(link, foretoken.load(MODEL), PROMPT, max_new_tokens=2)
    assert link.is_symlink()
    assert foretoken.verify(target).verified


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "{folder} is a folder; expected the name of a file for the record"),
        ("x" * 300, "{folder}/" + "x" * 300 + " cannot hold the record (File name too long); name another file"),
        ("/dev/null", "/dev/null is no ordinary file; expected the name of a file for the record"),
    ],
)
def test_a_place_that_cannot_hold_a_record_is_refused_before_anything_is_generated(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(MODEL)
    monkeypatch.setattr(model, "stream", lambda *args, **options: pytest.fail("it generates"))
    with pytest.raises(TranscriptError) as error:
        foretoken.record(tmp_path / name, model, PROMPT)
    assert str(error.value) == message.format(folder=tmp_path)


def test_a_completion_without_its_hash_is_no_record(tmp_path: Path) -> None:
    model = foretoken.load(MODEL)
    done = model.generate(PROMPT, max_new_tokens=2)
    with pytest.raises(InputError, match="has no SHA-256 of its logits; generate it with hash_logits=True"):
        write(tmp_path / "record.json", model, PROMPT, GenerateSettings(), done)
    assert not list(tmp_path.iterdir())


def test_a_prompt_that_cannot_be_generated_from_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(PromptError):
        foretoken.record(tmp_path / "record.json", foretoken.load(MODEL), "")
    assert not list(tmp_path.iterdir())
