"""The measurement of several texts side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from foretoken.bench import many

DRAFT = "lookup:tokens=4"  # a pace may rightly draft nothing


def test_each_draft_has_a_row_beside_plain_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    asked = ["--model", "stdlib-1m", "--suite", "everyday-20", "--draft", DRAFT, "--at-once", "2", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["many", *asked, "--max-new-tokens", "24", "--out", str(out)])
    many.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    plain, lookup = record["rows"]
    assert (plain["draft"], plain["times_plain"], plain["draft_tokens"]) == ("none", 1, 0)
    assert lookup["draft"] == DRAFT
    assert len(lookup["times_plain_by_repeat"]) == 2
    assert lookup["draft_tokens"] > 0, "drafts were made"
    assert [row["texts_with_other_tokens"] for row in record["rows"]] == [0, 0]


def test_turns_alternate_and_the_first_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((9.0, 9.0, 1.0, 4.0, 3.0, 1.0))  # plain, lookup; lookup, plain; plain, lookup
    real = many._run
    monkeypatch.setattr(many, "_run", lambda *its: (next(seconds), real(*its)[1]))
    out = tmp_path / "record.json"
    asked = ["--model", "stdlib-1m", "--suite", "everyday-20", "--draft", DRAFT, "--at-once", "2", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["many", *asked, "--max-new-tokens", "24", "--out", str(out)])
    many.main()
    _, lookup = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert lookup["times_plain_by_repeat"] == [4, 3]
    assert (lookup["times_plain"], lookup["tokens_per_second"]) == (3.5, 48)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--repeats", "0"], "repeats is 0, expected a whole number, 1 or more"),
        (["--at-once", "0"], "at_once is 0, expected a whole number, 1 or more"),
        (["--at-once", "2", "--at-once", "2"], "at_once 2 was given twice; give it once"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    given: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["many", "--model", "stdlib-1m", *given])
    with pytest.raises(SystemExit, match=message):
        many.main()


def test_more_texts_than_prompts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["many", "--model", "stdlib-1m", "--suite", "everyday-20", "--at-once", "21"])
    with pytest.raises(SystemExit, match="many: at_once is 21, and everyday-20 has 20 prompts; ask for fewer"):
        many.main()
