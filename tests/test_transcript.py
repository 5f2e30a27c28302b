"""Records: what is written is proven again, by every way that must give the same, and nothing else is."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import foretoken
from foretoken import source
from foretoken.errors import (
    DraftSpecError,
    InputError,
    ModelNotFoundError,
    NumericsError,
    PromptError,
    SettingError,
    TranscriptError,
)
from foretoken.kernels import native
from foretoken.settings import GenerateSettings
from foretoken.source import EMBEDDED
from foretoken.transcript.layout import _FIELDS
from foretoken.transcript.record import write
from foretoken.transcript.verify import Verification
from tests.tiny import needs_native

PROMPT = "for i in range(3):\n    print(i)\nfor i in range(3):"
COUNT = 24
MODEL = "stdlib-1m"
ENGINE = "pytorch" if native.module() is None else "native"
VERIFIED = Verification(True, COUNT)

Record = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of a generation in which drafting had something to do."""
    path = tmp_path_factory.mktemp("records") / "whole.json"
    done = foretoken.record(path, foretoken.load(MODEL), PROMPT, max_new_tokens=COUNT)
    assert 0 < done.stats.accepted_tokens < done.stats.draft_tokens
    return path


@pytest.fixture
def altered(whole: Path, tmp_path: Path) -> Callable[[Callable[[Record], object]], Path]:
    """The record with something changed in it."""

    def alter(change: Callable[[Record], object]) -> Path:
        content = json.loads(whole.read_text(encoding="utf-8"))
        change(content)
        path = tmp_path / "altered.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return alter


Altered = Callable[[Callable[[Record], object]], Path]


def refusal(path: Path, *args: Any, kind: type[Exception] = TranscriptError, **options: Any) -> str:
    """The one line that says why a record is not verified."""
    with pytest.raises(kind) as error:
        foretoken.verify(path, *args, **options)
    assert type(error.value) is kind
    assert "\n" not in str(error.value)
    return str(error.value)


# -- what is written --------------------------------------------------------------------------------------------------


def test_a_record_says_what_was_generated_from_what_and_how(whole: Path) -> None:
    told = json.loads(whole.read_text(encoding="utf-8"))
    model = foretoken.load(MODEL)
    done = model.generate(PROMPT, max_new_tokens=COUNT, hash_logits=True)
    assert (told["format"], told["version"]) == ("foretoken transcript", 1)
    assert (told["model"], told["revision"]) == (MODEL, None)
    assert told["prompt"] == {"text": PROMPT, "tokens": list(model.tokens_of(PROMPT))}
    assert told["settings"] == {
        "draft": "lookup",
        "num_speculative_tokens": 8,
        "dtype": "bfloat16",
        "device": "cpu",
        "promise": "auto",
        "weights": "mapped",
        "prefill_chunk": 256,
        "max_new_tokens": COUNT,
        "ignore_eos": False,
        "temperature": 0,
        "seed": None,
    }
    assert (told["promise"], told["tokens"], told["text"]) == ("exact", list(done.tokens), done.text)
    assert (told["finish_reason"], told["logits_sha256"]) == ("length", done.logits_sha256)
    if ENGINE == "native":
        assert told["arithmetic"] == {"engine": "native", "architecture": platform.machine()}
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
    assert read | {"format", "version"} == set(told)


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
    assert json.loads(path.read_text(encoding="utf-8"))["version"] == 1
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
        ("nowhere/record.json", "there is no folder {folder}/nowhere for the record; make it first"),
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


# -- what is proven ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"draft": "none"}, {"draft": "lookup:min_match=1:tokens=3"}])
def test_a_record_is_verified_whatever_drafts(whole: Path, options: dict[str, Any]) -> None:
    assert foretoken.verify(whole, **options) == VERIFIED


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_record_is_verified_on_any_number_of_threads(whole: Path, threads: int) -> None:
    assert foretoken.verify(whole, threads=threads) == VERIFIED


@pytest.mark.parametrize(
    ("load", "generate"),
    [
        ({"dtype": "float32", "draft": "none"}, {}),
        ({"draft": "lookup:tokens=3", "prefill_chunk": 5, "weights": "copied"}, {"ignore_eos": True}),
        ({"num_speculative_tokens": 2, "threads": 1}, {"max_new_tokens": 1}),
    ],
)
def test_a_record_brings_its_settings_along(tmp_path: Path, load: dict[str, Any], generate: dict[str, Any]) -> None:
    path = tmp_path / "record.json"
    done = foretoken.record(path, foretoken.load(MODEL, **load), PROMPT, **{"max_new_tokens": 9, **generate})
    assert foretoken.verify(path) == Verification(True, len(done.tokens))


def test_a_prompt_of_tokens_is_recorded_and_verified(tmp_path: Path) -> None:
    path, model = tmp_path / "record.json", foretoken.load(MODEL)
    tokens = torch.tensor(model.tokens_of(PROMPT))
    done = foretoken.record(path, model, tokens, max_new_tokens=COUNT)  # type: ignore[arg-type]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["prompt"] == {"text": None, "tokens": tokens.tolist()}
    assert told["tokens"] == list(done.tokens)
    assert foretoken.verify(path) == VERIFIED


def test_a_generation_that_ends_by_itself_is_verified(tmp_path: Path) -> None:
    path, model = tmp_path / "record.json", foretoken.load(MODEL)
    model.end_tokens = frozenset(model.generate(PROMPT, max_new_tokens=9).tokens[8:])
    foretoken.record(path, model, PROMPT, max_new_tokens=COUNT)
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["finish_reason"] == "stop"
    at = len(told["tokens"])
    assert foretoken.verify(path) == Verification(
        False, at, f"the record ends after {at} tokens, and generation goes on here"
    )  # the files say nothing of this end token


def test_a_model_that_moved_is_found_where_it_is_now(tmp_path: Path) -> None:
    before, after, path = tmp_path / "before", tmp_path / "after", tmp_path / "record.json"
    shutil.copytree(EMBEDDED[MODEL], before)
    foretoken.record(path, foretoken.load(before), PROMPT, max_new_tokens=3)
    assert foretoken.verify(path).verified
    before.rename(after)
    message = refusal(path, kind=ModelNotFoundError)
    assert message.startswith(f"{path} names the model {str(before)!r:.80}: there is no folder")
    assert message.endswith("; say with --model (model=) where it is")
    assert foretoken.verify(path, after).verified
    assert foretoken.verify(path, MODEL).verified, "the same files under another name"


def run(*command: object, **env: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, in another environment."""
    words = [sys.executable, "-m", "foretoken", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **env})


@needs_native
def test_the_native_bits_are_the_same_at_another_level_and_with_pytorchs_other_vectors(
    whole: Path, tmp_path: Path
) -> None:
    """PyTorch computes the table of rotations, and its vectorised functions differ in the last place."""
    other = {"FORETOKEN_LEVEL": "generic", "ATEN_CPU_CAPABILITY": "default"}
    verified = run("verify", whole, **other)
    assert (verified.returncode, verified.stdout) == (0, f"verified: {COUNT} tokens and their logits, bit for bit\n")
    path = tmp_path / "generic.json"
    made = run("generate", "def add(", "--model", MODEL, "--max-new-tokens", 12, "--record", path, **other)
    assert made.returncode == 0, made.stderr
    assert "native generic" in made.stderr
    assert foretoken.verify(path, draft="none", threads=1).verified


def test_the_table_of_rotations_is_the_same_with_pytorchs_other_vectors() -> None:
    """Else no bit of a pass would be the same on two machines. Frequencies in float32 were not."""
    code = """
import hashlib, torch
from foretoken.decoder.config import RopeConfig
from foretoken.decoder.rope import RopeTable
digest = hashlib.sha256()
for theta in (1e4, 5e5, 1e6):
    for kind in ("default", "llama3", "yarn", "dynamic", "linear"):
        for head_dim in (8, 32, 64, 80, 96, 128):
            table = RopeTable(RopeConfig(theta=theta, type=kind, factor=4.0), head_dim, torch.device("cpu"))
            for tensor in table(list(range(3000, 3100))):
                digest.update(tensor.numpy().tobytes())
print(digest.hexdigest())
"""
    digests = set()
    for vectors in ("default", "avx2", ""):
        env = {**os.environ, "ATEN_CPU_CAPABILITY": vectors} if vectors else dict(os.environ)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
        digests.add(done.stdout)
    assert len(digests) == 1


@needs_native
def test_the_engines_refuse_each_others_records(whole: Path, tmp_path: Path) -> None:
    off = run("verify", whole, FORETOKEN_NATIVE="off")
    assert off.returncode == 2
    assert off.stderr == (
        f"foretoken: {whole} was made by the native engine; here runs pytorch because the native module is off, by "
        "FORETOKEN_NATIVE, and its bits are others: verify it where the native engine runs\n"
    )
    path = tmp_path / "pytorch.json"
    made = run(
        "generate", "def add(", "--model", MODEL, "--max-new-tokens", 6, "--record", path, FORETOKEN_NATIVE="off"
    )
    assert made.returncode == 0, made.stderr
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["arithmetic"]["engine"] == "pytorch"
    assert refusal(path) == (
        f"{path} was made by pytorch; here runs the native engine, and its bits are others: "
        "verify it with FORETOKEN_NATIVE=off"
    )
    proven = run("verify", path, "--draft", "none", FORETOKEN_NATIVE="off")
    assert (proven.returncode, proven.stdout) == (0, "verified: 6 tokens and their logits, bit for bit\n")
    told["arithmetic"]["torch"] = "1.0"
    told["logits_sha256"] = "0" * 64
    path.write_text(json.dumps(told), encoding="utf-8")
    differs = run("verify", path, FORETOKEN_NATIVE="off")
    assert (differs.returncode, differs.stdout) == (
        1,
        "differs: 6 tokens are equal, but their logits differ in some bit "
        f"(recorded with torch 1.0, here {torch.__version__})\n",
    )


# -- what is not proven -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 7, COUNT - 1])
def test_a_token_that_was_tampered_with_is_named(altered: Altered, at: int) -> None:
    model = foretoken.load(MODEL)
    right = model.generate(PROMPT, max_new_tokens=COUNT).tokens[at]

    def change(told: Record) -> None:
        told["tokens"][at] = 300

    assert right != 300
    assert foretoken.verify(altered(change)) == Verification(
        False, at + 1, f"token {at} is {model.describe(right)} here, and {model.describe(300)} in the record"
    )


def put(**values: Any) -> Callable[[Record], object]:
    return lambda told: told.update(values)


@pytest.mark.parametrize(
    ("change", "compared", "difference"),
    [
        (
            lambda told: told.update(logits_sha256=told["logits_sha256"][1:] + "0"),
            COUNT,
            f"{COUNT} tokens are equal, but their logits differ in some bit",
        ),
        (put(finish_reason="stop"), COUNT, f"{COUNT} tokens are equal, but finish_reason is another"),
        (lambda told: told.update(text=told["text"] + " "), COUNT, f"{COUNT} tokens are equal, but text is another"),
        (lambda told: told["prompt"].update(text=PROMPT + " "), 0, "the prompt's text gives other tokens here"),
        (lambda told: told["tokens"].pop(), COUNT - 1, f"the record ends after {COUNT - 1} tokens, and generation"),
        (
            lambda told: told["tokens"].append(5),
            COUNT,
            f"generation ends after {COUNT} tokens here, and the record has",
        ),
        (lambda told: told["tokens"].insert(0, 10**30), 1, f"here, and token {10**30} in the record"),
        (
            lambda told: (told.update(text="x"), told["provenance"]["versions"].update(foretoken="0.0.1")),
            COUNT,
            "text is another (recorded with foretoken 0.0.1, here ",
        ),
    ],
)
def test_whatever_a_record_claims_is_compared(
    altered: Altered, change: Callable[[Record], object], compared: int, difference: str
) -> None:
    path = altered(change)
    found = foretoken.verify(path)
    assert not found.verified
    assert found.compared_tokens == compared
    assert found.difference is not None
    assert difference in found.difference


# -- what is refused --------------------------------------------------------------------------------------------------


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


def test_a_file_that_is_no_record_is_refused(tmp_path: Path, whole: Path) -> None:
    path = tmp_path / "record.json"
    assert refusal(path) == f"{path} cannot be read (No such file or directory); name the file of a record"
    assert refusal(tmp_path) == f"{tmp_path} cannot be read (Is a directory); name the file of a record"
    content = whole.read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:cut])
        assert re.fullmatch(
            re.escape(str(path)) + r" is not JSON \(.*\); it may be cut short: expected a record", refusal(path)
        )
    for other in (b"\xff\xfe", b"[" * 100_000, b"9" * 10_000):
        path.write_bytes(other)
        assert "is not JSON" in refusal(path) or "is not a record" in refusal(path)
    for value in ([], 3, None, {}, {"format": "another"}):
        path.write_text(json.dumps(value), encoding="utf-8")
        assert refusal(path) == (f"{path} is not a record of a generation; expected one that `generate --record` wrote")


@pytest.mark.parametrize("version", [2, 0, "1", None, True, 1.0])
def test_another_version_is_refused(altered: Altered, version: object) -> None:
    path = altered(put(version=version))
    assert refusal(path) == (
        f"{path} is a record of version {version!r}, expected 1; verify it with the Foretoken that wrote it, or record "
        "it again"
    )


@pytest.mark.parametrize("name", _FIELDS)
def test_a_field_that_is_missing_is_named(altered: Altered, name: str) -> None:
    *path, last = name.split(".")

    def change(told: Record) -> None:
        for key in path:
            told = told[key]
        del told[last]

    file = altered(change)
    assert refusal(file) == f"{file} lacks {name}; it is no whole record: record it again"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(model=3), "model is 3, expected text"),
        (put(prompt=[]), "lacks prompt.text; it is no whole record"),
        (lambda told: told["prompt"].update(tokens=[]), "prompt.tokens is [], expected token ids"),
        (lambda told: told["prompt"].update(tokens=[True]), "prompt.tokens is [True], expected token ids"),
        (put(tokens=[1, -1]), "tokens is [1, -1], expected token ids"),
        (put(tokens="12"), "tokens is '12', expected token ids"),
        (put(finish_reason="eos"), "finish_reason is 'eos', expected stop or length"),
        (put(logits_sha256="0x12"), "logits_sha256 is '0x12', expected 64 hexadecimal digits"),
        (put(files={}), "files is {}, expected names of files with 64"),
        (put(files={"config.json": 1}), "files is {'config.json': 1}, expected names of files with 64"),
        (put(arithmetic={"engine": "other"}), "arithmetic.engine is 'other', expected native or pytorch"),
        (put(promise="perfect"), "promise is 'perfect', expected exact or algorithmic"),
        (put(provenance=1), "lacks provenance.versions.foretoken"),
        (lambda told: told["settings"].update(temperature=0.7), "temperature is 0.7, expected 0, because decoding is"),
        (lambda told: told["settings"].update(seed=1), "seed is 1, expected null, because decoding is greedy"),
        (lambda told: told["settings"].update(dtype="int8"), "dtype is 'int8'"),
        (lambda told: told["settings"].update(dtype=["float32"]), "dtype is ['float32']"),
        (lambda told: told["settings"].update(draft=None), "draft is None, expected text"),
        (lambda told: told["settings"].update(max_new_tokens="all"), "max_new_tokens is 'all', expected a whole"),
        (lambda told: told["settings"].update(ignore_eos=1), "ignore_eos is 1, expected True or False"),
        (lambda told: told["prompt"].update(tokens=[10**9], text=None), "the prompt holds token 1000000000; the model"),
        (lambda told: told["prompt"].update(text=""), "the prompt is empty; expected at least one token"),
        (lambda told: told["prompt"].update(text="\ud800"), "the prompt is not text: character 0 is half a character"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_by_name(
    altered: Altered, change: Callable[[Record], object], message: str
) -> None:
    path = altered(change)
    said = refusal(path)
    assert said.startswith(str(path))
    assert message in said


def test_what_the_caller_gives_is_not_blamed_on_the_record(whole: Path) -> None:
    assert refusal(whole, draft="lokup", kind=DraftSpecError).startswith("there is no draft 'lokup'; did you mean")
    assert refusal(whole, threads=0, kind=SettingError) == "threads is 0, expected a whole number, 1 or more"
    assert refusal(whole, "no/such/folder", kind=ModelNotFoundError).startswith("there is no folder 'no/such/folder'")


def test_a_prompt_that_cannot_be_generated_from_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(PromptError):
        foretoken.record(tmp_path / "record.json", foretoken.load(MODEL), "")
    assert not list(tmp_path.iterdir())
