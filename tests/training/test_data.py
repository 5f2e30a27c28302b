"""Text to train on: what is read of files and folders, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foretoken.common.source import EMBEDDED
from foretoken.errors import InputError
from foretoken.text.tokenizer import Tokenizer
from foretoken.training import data

WORDS = "def add(a, b):\n    return a + b\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(EMBEDDED["stdlib-1m"])


def test_files_that_are_no_text_are_left_out_and_counted(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "text.py").write_text(WORDS * 40)
    (tmp_path / "empty.py").touch()
    (tmp_path / ".hidden").write_bytes(b"\xff")
    alone = data.read([str(tmp_path)], tokenizer)
    assert not caplog.text
    (tmp_path / "a.bin").write_bytes(b"\0\1\2")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 9)
    with_others = data.read([str(tmp_path)], tokenizer)
    assert with_others.learned.equal(alone.learned)
    assert len(with_others.learned) > 100
    assert f"2 files of {tmp_path}, such as a.bin: not UTF-8 text, or not to be read; left out" in caplog.text


def test_a_place_without_text_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(InputError, match="holds no text to train on"):
        data.read([str(tmp_path)], tokenizer)
    with pytest.raises(InputError, match="there is no file or folder"):
        data.read([str(tmp_path / "nothing")], tokenizer)


def test_every_twentieth_file_is_held_out(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for at in range(40):
        (tmp_path / f"{at:02}.txt").write_text(f"number {at}\n")
    learned, heldout = (tokenizer.decode(stream.tolist()) for stream in data.read([str(tmp_path)], tokenizer))
    assert [at for at in range(40) if f"number {at}\n" in heldout] == [19, 39]
    assert [at for at in range(40) if f"number {at}\n" not in learned] == [19, 39]


def test_a_file_that_is_named_twice_is_read_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for at in range(40):
        (tmp_path / ("sub" if at % 2 else ".") / f"{at:02}.txt").write_text(f"number {at}\n")
    once = data.read([str(tmp_path)], tokenizer)
    again = data.read([str(tmp_path), str(tmp_path / "sub"), f"{tmp_path}/sub/../sub"], tokenizer)
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))


def test_the_standard_library_may_be_one_of_several_places(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.corpus, "read_texts", lambda names: [("", f"library {names.stem}\n")])
    (tmp_path / "own.txt").write_text("my own words\n" * 40)
    learned, heldout = (tokenizer.decode(its.tolist()) for its in data.read(["stdlib", str(tmp_path)], tokenizer))
    assert "library train-files" in learned
    assert "library heldout-files" in heldout
    assert "my own words" in learned
    assert "my own words" in heldout
