"""A record claims the files that its model was loaded from, so it is refused where they are others by now."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import foretoken
from foretoken.api.build import with_draft
from foretoken.api.model import Model
from foretoken.common.files import FilesAsRead
from foretoken.common.source import EMBEDDED
from foretoken.errors import TranscriptError
from foretoken.settings.generate import GenerateSettings
from foretoken.transcript import verify as verifying
from foretoken.transcript.record import write
from tests.transcript.records import MODEL, PROMPT, VERIFIED

Change = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    shutil.copytree(EMBEDDED[MODEL], place)
    return place


def change_a_bit(file: Path) -> None:
    """As long as it was, at the same place; its time is put forward, because clocks of files may be coarse."""
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    before = file.stat()
    with open(file, "r+b") as there:
        there.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def put_another(file: Path) -> None:
    """What downloads and editors do: another file takes the name, with the same time."""
    before = file.stat()
    other = file.with_name("other")
    shutil.copy(file, other)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)


CHANGES: dict[str, tuple[str, Change]] = {
    "weights": ("model.safetensors", change_a_bit),
    "weights that were put there": ("model.safetensors", put_another),
    "configuration": ("config.json", change_a_bit),
    "end tokens": ("generation_config.json", Path.unlink),
    "tokenizer": ("tokenizer.json", put_another),
    "what there was not": ("added_tokens.json", lambda file: file.write_text("{}")),
}


def refusal(record: Callable[[], object]) -> str:
    with pytest.raises(TranscriptError) as error:
        record()
    return str(error.value)


@pytest.mark.parametrize("what", CHANGES)
def test_files_that_were_changed_after_loading_are_not_recorded_and_nothing_is_generated(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change = CHANGES[what]
    model = foretoken.load(folder)
    change(folder / name)
    monkeypatch.setattr(Model, "stream", lambda *args, **options: pytest.fail("it generates"))
    message = refusal(lambda: foretoken.record(tmp_path / "record.json", model, PROMPT, max_new_tokens=2))
    assert message == (
        f"{folder / name} is not the file that the model was loaded from; load the model again to record it"
    )
    assert not (tmp_path / "record.json").exists()


def test_files_that_change_while_text_is_generated_are_not_recorded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(folder)
    generate = model.generate

    def change_and_generate(prompt: str, chosen: GenerateSettings) -> foretoken.Completion:
        change_a_bit(folder / "config.json")
        return generate(prompt, chosen)

    monkeypatch.setattr(model, "generate", change_and_generate)
    message = refusal(lambda: foretoken.record(tmp_path / "record.json", model, PROMPT, max_new_tokens=2))
    assert message.startswith(f"{folder / 'config.json'} is not the file that the model was loaded from; ")
    assert not (tmp_path / "record.json").exists()


def test_files_that_change_while_they_are_hashed_are_not_recorded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(folder)
    settings = GenerateSettings(max_new_tokens=2, hash_logits=True)
    done = model.generate(PROMPT, settings)

    def change_and_hash(file: Path) -> str:
        if file.name == "model.safetensors":
            change_a_bit(file)
        return "0" * 64

    monkeypatch.setattr("foretoken.transcript.record.sha256", change_and_hash)
    message = refusal(lambda: write(tmp_path / "record.json", model, PROMPT, settings, done))
    assert message.startswith(f"{folder / 'model.safetensors'} is not the file that the model was loaded from; ")


def test_a_folder_that_went_away_is_told_before_anything_is_generated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = foretoken.load(folder, weights="copied")
    shutil.rmtree(folder)
    monkeypatch.setattr(Model, "stream", lambda *args, **options: pytest.fail("it generates"))
    assert "is not the file that the model was loaded from" in refusal(
        lambda: foretoken.record(tmp_path / "record.json", model, PROMPT)
    )


def test_another_draft_is_of_the_same_files(folder: Path, tmp_path: Path) -> None:
    model = with_draft(foretoken.load(folder), "none")
    foretoken.record(tmp_path / "record.json", model, PROMPT, max_new_tokens=2)
    change_a_bit(folder / "config.json")
    assert "is not the file" in refusal(lambda: foretoken.record(tmp_path / "again.json", model, PROMPT))


def test_a_file_that_decides_nothing_may_change(folder: Path, tmp_path: Path) -> None:
    model = foretoken.load(folder)
    (folder / "README.md").write_text("decides nothing", encoding="utf-8")
    done = foretoken.record(tmp_path / "record.json", model, PROMPT, max_new_tokens=2)
    assert len(done.tokens) == 2
    assert foretoken.verify(tmp_path / "record.json").verified


def test_files_that_change_between_their_proof_and_the_loading_prove_nothing(
    whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foretoken.verify(whole, folder) == VERIFIED
    load = foretoken.load

    def change_and_load(*args: object, **settings: object) -> Model:
        put_another(folder / "model.safetensors")
        return load(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(verifying, "load", change_and_load)
    assert refusal(lambda: foretoken.verify(whole, folder)) == (
        f"{folder / 'model.safetensors'} was changed while the record was verified; verify it again"
    )


def test_what_was_noted_tells_the_first_file_that_is_another(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "absent")]
    for file in files[:2]:
        file.write_text("what was there", encoding="utf-8")
    noted = FilesAsRead.note(files)
    assert noted.changed() is None
    assert list(noted.files) == files
    files[2].touch()
    assert noted.changed() == files[2]
    with open(files[1], "a", encoding="utf-8") as there:
        there.write("!")
    assert noted.changed() == files[1]
    with pytest.raises(TranscriptError) as error:
        noted.expect_unchanged("is another than before; read it again", TranscriptError)
    assert str(error.value) == f"{files[1]} is another than before; read it again"
