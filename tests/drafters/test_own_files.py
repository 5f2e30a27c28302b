"""`lookup:from=FOLDER`: the user's files as a source of drafts."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import foretoken
from foretoken.drafters import own_files
from foretoken.drafters.lookup import LookupDrafter
from foretoken.drafters.own_files import OwnFiles, files, text_of
from foretoken.errors import DraftSpecError
from foretoken.protocol.types import Request, Turn
from tests.fakes import Known

PROMPT = "def read(self, size=-1):\n    "


def drafted(drafter: LookupDrafter, *prompt: int, depth: int = 4) -> tuple[int, ...]:
    drafter.begin([Request(0, prompt, 99)])
    (draft,) = drafter.propose([Turn(0, 3, 40, depth, depth)])
    return draft.tokens


def test_the_longer_match_is_followed_and_the_texts_own_if_both_are_as_long() -> None:
    elsewhere = Known([[7, 1, 2, 3, 50, 51], [1, 2, 60, 61]])
    assert drafted(LookupDrafter(files=elsewhere), 9, 7, 1, 2, 3) == (50, 51)
    assert drafted(LookupDrafter(files=elsewhere), 2, 3, 8, 8, 1, 2, 3) == (50, 51)
    assert drafted(LookupDrafter(files=elsewhere), 7, 1, 2, 3, 8, 8, 7, 1, 2, 3) == (8, 8, 7, 1)
    assert drafted(LookupDrafter(2, elsewhere), 9, 7) == ()
    assert drafted(LookupDrafter(1, elsewhere), 9, 7) == (1, 2, 3, 50)


def test_the_length_of_the_match_is_that_of_the_longer_one() -> None:
    drafter = LookupDrafter(files=Known([[7, 1, 2, 3, 50]]))
    drafter.begin([Request(0, (3, 8, 7, 1, 2, 3), 99), Request(1, (4, 5, 4, 5), 99)])
    assert [drafter.matched(sequence) for sequence in (0, 1, 2)] == [4, 2, 0]


def test_an_index_that_is_not_there_is_waited_for_only_by_the_patient() -> None:
    late = Known(None)
    assert drafted(LookupDrafter(files=late), 1, 2, 3, 1, 2) == (3, 1, 2, 3)
    assert late.waited == 0
    drafted(LookupDrafter(files=late, patient=True), 1, 2, 3, 1, 2)
    assert late.waited == 1


def test_files_are_read_newest_first_without_those_that_nobody_wrote(tmp_path: Path) -> None:
    for at, name in enumerate(("old.py", "new.py", ".hidden", "node_modules/a.js", ".git/b", "deep/er/c.md")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
        os.utime(path, (at, at))
    (tmp_path / "large.csv").write_bytes(b"1," * (1 << 20))
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert files(tmp_path) == [tmp_path / name for name in ("deep/er/c.md", "new.py", "old.py")]
    assert files(tmp_path / "old.py") == [tmp_path / "old.py"]


@pytest.mark.parametrize("content", [b"a\0b", b"\xff\xfe", None])
def test_what_is_no_text_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert text_of(path) is None


def test_the_beginning_of_a_long_file_may_end_within_a_letter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("aé", encoding="utf-8")
    assert [text_of(path, most) for most in (1, 2, 3, 4)] == ["a", "a", "aé", "aé"]
    path.write_bytes("aé".encode()[:2])  # here the file itself ends so
    assert text_of(path) is None


def test_a_place_without_a_text_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = foretoken.load("stdlib-1m", draft="none").tokenizer
    assert tokenizer is not None
    (tmp_path / "weights").write_bytes(b"a\0b")
    OwnFiles(tmp_path / "weights", tokenizer).wait()
    assert f"{tmp_path / 'weights'} holds no text that can be read, so nothing is drafted from it" in caplog.text
    (tmp_path / "empty").touch()
    OwnFiles(tmp_path / "empty", tokenizer).wait()
    assert f"{tmp_path / 'empty'} holds no text that can be read" in caplog.text


def test_more_than_fits_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = foretoken.load("stdlib-1m", draft="none").tokenizer
    assert tokenizer is not None
    for at in range(3):
        (tmp_path / f"{at}.py").write_text("import os\n" * 20)
        os.utime(tmp_path / f"{at}.py", (at, at))
    monkeypatch.setattr(own_files, "MOST_TOKENS", 25)
    index = OwnFiles(tmp_path, tokenizer)
    index.wait()
    assert index.index is not None
    assert len(index.index) == 25 + 1  # and what separates texts
    assert "holds more than 25 tokens; the 2 oldest files are left out" in caplog.text


def test_an_index_that_fails_costs_drafts_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(place: Path) -> list[Path]:
        raise OSError("the disk is gone")

    monkeypatch.setattr(own_files, "files", fails)
    model = foretoken.load("stdlib-1m", draft=f"lookup:from={tmp_path}")
    assert model.generate(PROMPT, max_new_tokens=4).tokens
    for thread in threading.enumerate():
        if thread.name == f"reads {tmp_path}":
            thread.join()
    assert "cannot be indexed (OSError: the disk is gone); it is left out" in caplog.text


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("draft", ["lookup", "mxfp4:tokens=3,lookup"])
def test_a_file_that_holds_the_answer_is_drafted_from_and_the_text_stays(
    tmp_path: Path, draft: str, sampling: dict[str, float]
) -> None:
    plain = foretoken.load("stdlib-1m", draft="none").generate(PROMPT, max_new_tokens=48, **sampling)
    file = tmp_path / "answer.py"
    file.write_text(PROMPT + plain.text)
    accepted = {}
    for spec in (draft, f"{draft}:from={file}"):
        model = foretoken.load("stdlib-1m", draft=spec, pace="fixed")
        drafter = model.drafter
        drafter = getattr(drafter, "inner", None) or drafter
        assert isinstance(drafter, LookupDrafter)
        if drafter._files is not None:
            drafter._files.wait()
        done = model.generate(PROMPT, max_new_tokens=48, **sampling)
        assert done.tokens == plain.tokens
        accepted[spec] = next(level.accepted_tokens for level in done.stats.levels if level.name == "lookup")
    few, many = accepted.values()
    assert many > few + 5


def test_under_the_rejection_rule_one_seed_gives_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def read(self, size=-1):\n    return self.read(size)\n" * 4)
    made = [
        foretoken.load("stdlib-1m", draft=f"lookup:from={tmp_path}", rule="rejection").generate(
            "def read(self, size=-1", max_new_tokens=24, temperature=0.9, seed=5
        )
        for _ in range(2)
    ]
    assert made[0].tokens == made[1].tokens
    assert made[0].stats.draft_tokens


def test_a_place_that_is_not_there_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(DraftSpecError, match="from is '/no/such', expected a file or folder that is there"):
        foretoken.load("no-such-model", draft="lookup:from=/no/such")


def test_a_record_names_the_files_from_wherever_it_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.py").write_text(PROMPT)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "record.json"
    foretoken.record(path, foretoken.load("stdlib-1m", draft="lookup:from=own"), PROMPT, max_new_tokens=9)
    monkeypatch.chdir("/")
    assert json.loads(path.read_text())["settings"]["draft"] == f"lookup:from={tmp_path / 'own'}"
    assert foretoken.verify(path).verified
