"""Records on disk: refused before the work where they cannot be written, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.bench import identical, passes
from foretoken.common.files import as_json, beginning, expect_place, read_bytes, write_bytes, write_json
from foretoken.errors import InputError, TranscriptError
from tests.prove import __main__ as prove

RECORD = {"number": 1, "name": "é"}


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_record_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for record in (RECORD, {}):
        expect_place(path)
        write_json(path, record)
        assert json.loads(path.read_text(encoding="utf-8")) == record
        assert left_in(tmp_path) == ["record.json"]


def test_a_name_without_a_folder_is_in_the_one_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expect_place("record.json")
    write_json("record.json", RECORD)
    assert left_in(tmp_path) == ["record.json"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
@pytest.mark.parametrize("reason", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(
    broken: str, reason: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    path.write_text("what was there", encoding="utf-8")

    def breaks(*args: Any) -> None:
        assert len(left_in(tmp_path)) == 2, "it has begun to write, beside the old file"
        raise reason

    monkeypatch.setattr(*((os, "fsync") if broken == "fsync" else (Path, "replace")), breaks)
    with pytest.raises((InputError, KeyboardInterrupt)) as error:
        write_json(path, RECORD)
    monkeypatch.undo()
    if isinstance(reason, OSError):
        assert str(error.value) == (
            f"the record cannot be written to {path} (No space left on device); free some space, or name a file "
            "elsewhere"
        )
    assert path.read_text(encoding="utf-8") == "what was there"
    assert left_in(tmp_path) == ["record.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL to send")
def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("what was there", encoding="utf-8")
    code = """
import os, signal, sys
from foretoken.common.files import write_json
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
write_json(sys.argv[1], {"number": 1})
"""
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=False)
    assert done.returncode == -9
    assert path.read_text(encoding="utf-8") == "what was there"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is nothing without an end")
def test_what_has_no_end_is_not_read_until_memory_is_full(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="more than 256 MB") as error:
        read_bytes("/dev/zero")
    assert error.value.strerror == "more than 256 MB"
    (tmp_path / "x").write_bytes(b"x" * 3_000_000)
    assert read_bytes(tmp_path / "x") == b"x" * 3_000_000


def test_what_cannot_be_json_touches_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "record.json", {"a set": {1}})
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "{folder} is a folder; expected the name of a file for the record"),
        ("/dev/null", "/dev/null is no ordinary file; expected the name of a file for the record"),
        ("x" * 300, "{folder}/" + "x" * 300 + " cannot hold the record (File name too long); name another file"),
        ("a\0b", "{folder}/a\\x00b cannot hold the record (embedded null byte); name another file"),
        ("file/record.json", "{folder}/file/record.json cannot hold the record (Not a directory); name another file"),
        ("loop", "{folder}/loop cannot hold the record (Too many levels of symbolic links); name another file"),
    ],
)
def test_a_place_that_can_hold_no_record_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = left_in(tmp_path)
    for kind in (InputError, TranscriptError):
        with pytest.raises(kind) as error:
            expect_place(tmp_path / name, kind)
        assert type(error.value) is kind
        assert str(error.value) == message.format(folder=tmp_path)
    assert left_in(tmp_path) == before


@pytest.mark.parametrize("name", ["made/for it/record.json", "dangling", "dangling/record.json", "gone/../x.json"])
def test_a_folder_that_is_not_there_is_made_when_the_record_is_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "further" / "record.json")
    expect_place(tmp_path / name)
    assert left_in(tmp_path) == ["dangling"]
    write_bytes(tmp_path / name, b"x")
    assert Path(os.path.realpath(tmp_path / name)).read_bytes() == b"x"
    assert not (tmp_path / "gone").exists()


def test_a_folder_is_not_made_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda folder, mode: Path(folder) != tmp_path)
    with pytest.raises(InputError, match=f"the folder {tmp_path} cannot be written to; name a file elsewhere"):
        expect_place(tmp_path / "gone" / "further" / "record.json")


def test_the_beginning_of_what_is_there_is_told_or_why_it_cannot_be(tmp_path: Path) -> None:
    place = tmp_path / "there"
    assert beginning(place) == b""
    place.write_bytes(b"x" * 5000)
    assert beginning(place) == b"x" * 1000
    with pytest.raises(TranscriptError) as error:
        beginning(tmp_path, TranscriptError, "picture")
    assert str(error.value) == f"{tmp_path} cannot hold the picture (Is a directory); name another file"


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the mode of the folder would not do: root may write anywhere
    monkeypatch.setattr(os, "access", lambda folder, mode: Path(folder) != tmp_path)
    with pytest.raises(InputError) as error:
        expect_place(tmp_path / "record.json")
    assert str(error.value) == (f"the folder {tmp_path} cannot be written to; name a file elsewhere for the record")


def test_a_link_keeps_leading_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link.json", tmp_path / "elsewhere" / "record.json"
    link.symlink_to(target)
    expect_place(link)
    write_json(link, RECORD)
    assert link.is_symlink()
    assert json.loads(target.read_text(encoding="utf-8")) == RECORD
    assert left_in(tmp_path / "elsewhere") == ["record.json"]


def test_a_place_that_went_away_meanwhile_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "record.json"
    expect_place(path)
    (tmp_path / "gone").touch()
    with pytest.raises(TranscriptError) as error:
        write_json(path, RECORD, TranscriptError)
    assert str(error.value) == f"the record cannot be written to {path} (File exists); name a file elsewhere"
    assert left_in(tmp_path) == ["gone"]


@pytest.mark.parametrize(
    ("command", "module", "work"),
    [("identical", identical, "compare"), ("passes", passes, "write_checkpoint"), ("prove", prove, "run")],
)
def test_a_measurement_that_could_not_be_kept_does_not_begin(
    command: str, module: Any, work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, work, lambda *args, **options: pytest.fail("it measures"))
    monkeypatch.setattr(sys, "argv", [command, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == f"{command}: {tmp_path} is a folder; expected the name of a file for the record"


@pytest.mark.parametrize(
    "record",
    [{}, {"a": 1, "b": [], "c": {}}, {"a": [{"b": [1, {"c": None}]}, {}], "d": {"e": {"f": "\n"}}, "g": [1, {}]}],
)
def test_a_record_is_the_json_that_it_was(record: dict[str, Any], tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", record)
    assert json.loads((tmp_path / "record.json").read_text(encoding="utf-8")) == record


def test_a_record_has_an_object_a_line() -> None:
    record = {"runs": [{"a": 1, "b": [2]}, {"a": 3}], "machine": {"threads": 2}, "n": 5}
    assert as_json(record) == (
        '{\n "runs": [\n  {"a": 1, "b": [2]},\n  {"a": 3}\n ],\n "machine": {\n  "threads": 2\n },\n "n": 5\n}\n'
    )
