"""Messages are one line, whatever is quoted in them."""

from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest

from foretoken.common.files import read_json
from foretoken.common.source import resolve
from foretoken.errors import (
    BatchError,
    CheckpointError,
    DraftSpecError,
    ForetokenError,
    InputError,
    ModelNotFoundError,
    SettingError,
    TranscriptError,
    UnsupportedModelError,
    one_line,
    quoted,
)
from foretoken.settings.drafts import DraftLevel, parse_draft
from foretoken.settings.generate import GenerateSettings
from foretoken.settings.load import LoadSettings

KINDS = [ForetokenError, InputError, TranscriptError, CheckpointError, ModelNotFoundError, UnsupportedModelError]


def test_an_error_of_many_prompts_reaches_another_process() -> None:
    error = BatchError([None, None], {0: SettingError("one"), 1: CheckpointError("two")})
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.completions == [None, None]
    assert {index: repr(each) for index, each in again.errors.items()} == {
        0: repr(error.errors[0]),
        1: repr(error.errors[1]),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_is_one_line_whatever_stands_in_it(kind: type[ForetokenError]) -> None:
    error = kind("a\nb\r\v\x85\u2028c \x1b[2J \u202e \udcff \0 é😀")
    assert str(error) == r"a\nb\r\x0b\x85\u2028c \x1b[2J \u202e \udcff \x00 é😀"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (kind, str(error))
    assert str(kind()) == ""


def test_a_line_stays_what_it_is() -> None:
    assert one_line("path/with spaces/é😀'\"\\n") == "path/with spaces/é😀'\"\\n"


def test_what_is_written_on_several_lines_is_quoted_on_one() -> None:
    assert quoted(np.array([[1, 2], [3, 4]])) == "array([[1, 2], [3, 4]])"
    assert quoted("a\n b") == r"'a\n b'"


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("refuse", "kind"),
    [
        (lambda: parse_draft(f"{LONG}:"), DraftSpecError),
        (lambda: parse_draft(f"{LONG}:a:a"), DraftSpecError),
        (lambda: parse_draft(f"a:{LONG}:{LONG}"), DraftSpecError),
        (lambda: parse_draft(f"{LONG},"), DraftSpecError),
        (lambda: parse_draft(f"a:=b{LONG}"), DraftSpecError),
        (lambda: DraftLevel("lookup", {LONG: "1"}).values({"k": int}), DraftSpecError),
        (lambda: DraftLevel(LONG, {"k": "1"}).values({}), DraftSpecError),
        (lambda: DraftLevel(LONG, {"k": "0"}).values({"k": int}), DraftSpecError),
        (lambda: LoadSettings(revision=LONG).of({LONG: 1}), SettingError),
        (lambda: GenerateSettings.chosen(GenerateSettings(), {LONG: 1}), SettingError),
        (lambda: resolve("stdlib-1m", LONG), SettingError),
        (lambda: resolve(LONG), ModelNotFoundError),
        (lambda: resolve(f"{LONG}/{LONG}"), ModelNotFoundError),
        (lambda: resolve([LONG]), SettingError),  # type: ignore[arg-type]
    ],
)
def test_what_a_caller_gives_is_cut(refuse: object, kind: type[ForetokenError]) -> None:
    with pytest.raises(kind) as error:
        refuse()  # type: ignore[operator]
    assert "…" in str(error.value)
    assert len(str(error.value)) < 450


def test_a_place_with_a_line_break_in_its_name_is_named_on_one_line() -> None:
    with pytest.raises(InputError) as error:
        read_json("/no/such\nplace", "name another")
    assert str(error.value) == r"/no/such\nplace cannot be read (No such file or directory); name another"
    assert ModelNotFoundError("x").errno is None
    assert errno.ENOENT not in ModelNotFoundError("x").args
